"""What a run of an encoder costs: the ways of allocating side by side, and the fixed part of a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime

from bench.encoder_arena import MODES, feed
from bench.spread import Spread, paired_ratio
from magnitude.engine.sessions import PROVIDERS, prepare_runtime, session_options

_SHAPES = ((1, 16), (16, 16), (4, 64), (1, 256), (2, 256))
_FITTED = ((1, 8), (1, 16), (1, 32), (4, 8), (4, 16), (4, 32), (16, 8), (16, 16), (4, 64), (1, 256))


class WaySpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a run, divided by that with the arena off in the same round; over all shapes and rounds."""

    mode: str
    ratio: Spread


class RunCost(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time of a run: `fixed_ms` and `token_ms` for each padded token."""

    fixed_ms: float
    token_ms: float

    @property
    def fixed_tokens(self) -> float:
        return self.fixed_ms / self.token_ms


def way_speeds(folder: Path, *, rounds: int, threads: int) -> list[WaySpeed]:
    """All ways of allocating take turns; the first round warms up."""
    prepare_runtime()
    sessions = {}
    shrinking: Any = onnxruntime.RunOptions()
    shrinking.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    for mode, (arena, patterns, reuse, _) in MODES.items():
        options = session_options(threads)
        options.enable_cpu_mem_arena, options.enable_mem_pattern, options.enable_mem_reuse = arena, patterns, reuse
        sessions[mode] = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=list(PROVIDERS))
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    for number in range(rounds + 1):
        for rows, tokens in _SHAPES:
            inputs = feed(rows, tokens)
            for mode, (_, _, _, shrink_above) in MODES.items():
                shrink = shrink_above is not None and rows * tokens > shrink_above
                started_s = time.perf_counter()
                sessions[mode].run(None, inputs, shrinking if shrink else None)
                took_s = time.perf_counter() - started_s
                if number:
                    times[mode].append(took_s)
    first = times["arena off"]
    return [WaySpeed(mode=mode, ratio=paired_ratio(took, first)) for mode, took in times.items()]


def run_cost(folder: Path, *, rounds: int, threads: int) -> RunCost:
    """A line through the processor times of several shapes, each weighted by its own time."""
    prepare_runtime()
    session: Any = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), session_options(threads), providers=list(PROVIDERS)
    )
    times: dict[tuple[int, int], list[float]] = {shape: [] for shape in _FITTED}
    for _ in range(rounds):
        for shape in _FITTED:
            inputs = feed(*shape)
            started_s = time.process_time()
            session.run(None, inputs)
            times[shape].append((time.process_time() - started_s) * 1000)
    took_ms = np.array([np.percentile(times[shape], 20) for shape in _FITTED])
    cells = np.array([rows * tokens for rows, tokens in _FITTED], float)
    line = np.stack([np.ones_like(cells), cells], axis=1)
    fixed_ms, token_ms = np.linalg.lstsq(line / took_ms[:, None], np.ones_like(took_ms), rcond=None)[0]
    return RunCost(fixed_ms=float(fixed_ms), token_ms=float(token_ms))
