"""The bench of kernels: its arithmetic, its synthetic model, and its runs by real graphs on a tiny model."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bench.bandwidth import MemoryReader
from bench.kernel_plot import kv_rate, plot_roofline, weights_rate
from bench.kernel_report import print_figures, print_switch
from bench.kernel_switch import switch_cost
from bench.kernels import SERVING, Run, contenders, measure_kernels, step_of, with_plan_over_bytes
from bench.spread import Spread
from bench.synthetic_gguf import Shape, write_synthetic
from magnitude.kernels.library import KernelLibrary
from magnitude.kernels.locate import VARIABLE
from magnitude.models.importing.parent import import_model
from magnitude.models.sources import open_source

TINY = Shape(layers=1, hidden=128, heads=2, kv_heads=1, ffn=128, vocab=300, context=256)


def test_a_step_s_share_of_the_bandwidth_is_what_it_reads_in_its_time() -> None:
    costs = {
        "product": {"calls": 20, "nanoseconds": 8_000_000, "weight_bytes": 800_000_000, "kv_bytes": 0, "rows": 20},
        "attention": {"calls": 10, "nanoseconds": 1_000_000, "weight_bytes": 0, "kv_bytes": 200_000_000, "rows": 10},
        "append": {"calls": 0, "nanoseconds": 0, "weight_bytes": 0, "kv_bytes": 0, "rows": 0},
    }
    step = step_of("2 rows at 32", 0.1, costs, 10, Spread(median=20e9, low=19e9, high=30e9))
    assert step.step_ms == pytest.approx(10)
    assert (step.weight_bytes, step.kv_bytes) == (80_000_000, 20_000_000)
    assert step.bandwidth_share == pytest.approx(100e6 / 0.010 / 20e9)
    assert step.operators_us == {"product": 800, "attention": 100}
    assert weights_rate(step) == pytest.approx(8)
    assert kv_rate(step) == pytest.approx(2)


def test_bandwidth_is_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.bandwidth.BUFFER_BYTES", 1 << 20)
    rate = MemoryReader(2).rate()
    assert math.isfinite(rate)
    assert rate > 0


def test_widths_are_set_in_turn_and_each_is_compared_with_its_own_steps(
    kernels_here: KernelLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.kernel_switch.IDLE_S", 0.01)
    widths: list[int] = []
    cost = switch_cost(lambda: widths.append(kernels_here.threads), kernels_here, (3, 1), 2)
    assert widths == [3] * 5 + [1] * 5 + [3] * 5 + [1] * 5
    assert cost.widths == (3, 1)
    assert cost.change_us.low >= 0


def test_the_synthetic_model_is_read_by_our_import_as_it_was_described(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "synthetic.gguf", TINY)
    written = path.stat().st_mtime_ns
    assert write_synthetic(path, TINY).stat().st_mtime_ns == written
    source = open_source(path)
    config = source.config
    assert (config.layers, config.hidden, config.heads, config.kv_heads) == (1, 128, 2, 1)
    assert (config.ffn, config.vocab, config.context_length) == (128, 300, 256)
    for name, shape in {"model.embed_tokens": (300, 128), "model.layers.0.mlp.down_proj": (128, 128)}.items():
        weights = source.floats(f"{name}.weight")
        assert weights.shape == shape
        assert 0.02 < np.std(weights) < 0.06


def test_the_synthetic_shape_is_that_of_half_a_billion_weights() -> None:
    weights = sum(rows * columns for rows, columns in Shape().matrices().values())
    assert 0.45e9 < weights < 0.5e9


@pytest.mark.slow
def test_a_model_s_graphs_are_run_in_turns_and_told(
    kernels_here: KernelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(kernels_here.path))
    monkeypatch.setattr("bench.kernels.STEPS", 2)
    monkeypatch.setattr("bench.kernels.PROMPT_TOKENS", 16)
    monkeypatch.setattr("bench.kernel_switch.IDLE_S", 0.01)
    source = write_synthetic(tmp_path / "synthetic.gguf", TINY)
    import_model(source, name="tiny", models_folder=tmp_path / "models")
    assert [plan.name for plan in contenders(tmp_path / "models/tiny", [], "python")] == ["kernels.onnx", SERVING]
    folder = with_plan_over_bytes(tmp_path / "models/tiny", tmp_path / "bench/tiny")
    plans = contenders(folder, [], "python")
    assert [plan.name for plan in plans] == ["kernels.onnx", "kernels-kv8.onnx", SERVING]
    runs = (Run(rows=1, past=8), Run(rows=4, past=8), Run(rows=0, past=0))
    figures = measure_kernels(folder, plans, threads=1, rounds=2, runs=runs, progress=lambda what: None)
    assert {(rate.run, rate.contender) for rate in figures.rates} == {
        (run.name, plan.name) for run in runs for plan in plans
    }
    assert [step.run for step in figures.steps] == [run.name for run in runs[:2]]
    assert figures.steps[0].weight_bytes == figures.steps[1].weight_bytes > 0
    # One position more of one layer's keys and values, of which four rows have one each.
    assert figures.steps[1].kv_bytes == 4 * figures.steps[0].kv_bytes
    console = Console(width=200, record=True)
    print_figures(console, figures)
    print_switch(console, switch_cost(lambda: None, kernels_here, (2, 1), 1))
    said = console.export_text()
    assert "kernels.onnx" in said
    assert "between 2 and 1 threads" in said
    plot_roofline(figures, tmp_path / "roofline.svg")
    assert (tmp_path / "roofline.svg").read_text().startswith("<?xml")
