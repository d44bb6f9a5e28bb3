"""Channels that are multiplied in float so that INT8 stays fine for the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from run_graph import open_graph, run_decoder

from magnitude.models.description import DecoderShape
from magnitude.models.graphs.build import build_graph
from magnitude.models.importing.wide_channels import find_wide_channels, widest
from magnitude.models.sources import open_source


def test_the_channels_that_stand_out_are_found_best_first() -> None:
    magnitudes = np.random.default_rng(0).random((50, 64)).astype(np.float32)
    magnitudes[:, 40] += 100
    magnitudes[:, 7] += 10
    magnitudes[:, 8] += 20  # hides behind nothing: its block's largest
    assert widest(magnitudes, 3)[:2] == (40, 8)
    assert 7 in widest(magnitudes, 3)


def test_nothing_is_taken_of_activations_without_a_widest_channel() -> None:
    assert widest(np.ones((20, 32), np.float32), 4) == ()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", ["llama_tied", "qwen2", "qwen3"])
def test_taking_channels_out_changes_nothing_where_activations_are_float(
    golden: Path, tmp_path: Path, name: str, bits: int
) -> None:
    source = open_source(golden / name)
    ids = np.arange(3, 27)[None]
    logits = []
    shape: DecoderShape | None = None
    wide = {f"layers.{layer}.{part}.in": (5, 17, 30) for layer in range(2) for part in ("attention", "mlp")}
    for folder, channels in (("plain", None), ("wide", wide)):
        (tmp_path / folder).mkdir()
        built = build_graph(
            source,
            tmp_path / folder,
            bits=bits,
            accuracy_level=0,
            wide_channels=channels,  # type: ignore[arg-type]
        )
        shape = built.decoder
        logits.append(run_decoder(open_graph(tmp_path / folder), ids)[0])
    assert np.abs(logits[0] - logits[1]).max() < 1e-4
    assert shape is not None
    found = find_wide_channels(tmp_path / "plain" / "serving.onnx", shape, [ids[0].tolist()])
    assert set(found) == set(wide)
    assert not list((tmp_path / "plain").glob("observing*"))


def test_int8_activations_come_nearer_to_float_without_the_widest_channel(golden: Path, tmp_path: Path) -> None:
    """The tiny model's first norm is given one channel 200 times as large as the others."""
    source = open_source(golden / "llama_tied")

    class Widened:
        def __getattr__(self, name: str) -> object:
            return getattr(source, name)

        def floats(self, name: str) -> np.ndarray:
            values = source.floats(name)
            if name == "model.layers.0.input_layernorm.weight":
                values = values.copy()
                values[5] *= 200
            return values

    ids = np.arange(3, 27)[None]
    logits = {}
    for name, level, channels in (
        ("float", 0, None),
        ("int8", 4, None),
        ("wide", 4, {"layers.0.attention.in": (5,)}),
    ):
        (tmp_path / name).mkdir()
        build_graph(Widened(), tmp_path / name, bits=8, accuracy_level=level, wide_channels=channels)  # type: ignore[arg-type]
        logits[name] = run_decoder(open_graph(tmp_path / name), ids)[0]
    plain, wide = (np.abs(logits[name] - logits["float"]).mean() for name in ("int8", "wide"))
    assert wide < 0.7 * plain
