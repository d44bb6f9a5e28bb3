"""What changing the pool's threads costs between two steps, and what the pool costs while nothing runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import msgspec
import numpy as np

from bench.spread import Spread
from magnitude.kernels.library import KernelLibrary, kernels
from magnitude.models.description import ModelDescription

IDLE_S = 5.0
PAUSE_S = 0.005  # between two steps, as while tokens are sampled and sent


class SwitchCost(msgspec.Struct, frozen=True, kw_only=True):
    """`change_us`: the call that changes the width. `next_step_us`: by how much the step after it is longer than the
    median of steps of that width without a change. `idle_cpu_s`: processor time of all threads in `idle_s` without a
    step."""

    widths: tuple[int, ...]
    change_us: Spread
    next_step_us: Spread
    idle_s: float
    idle_cpu_s: float


def switch_cost(step: Callable[[], object], library: KernelLibrary, widths: Sequence[int], rounds: int) -> SwitchCost:
    """`step` computes one decode step. Widths are set in turn, `rounds` times over."""
    usual_s: dict[int, list[float]] = {width: [] for width in widths}
    changes_s, after_s = [], []
    for _ in range(rounds):
        for width in widths:
            begin = time.perf_counter()
            library.use_threads(width)
            changes_s.append(time.perf_counter() - begin)
            after_s.append((width, _timed(step)))
            usual_s[width] += [_timed(step) for _ in range(4)]
    usual = {width: median(times) for width, times in usual_s.items()}
    begin_cpu = time.process_time()
    time.sleep(IDLE_S)
    return SwitchCost(
        widths=tuple(widths),
        change_us=Spread.of([1e6 * taken for taken in changes_s]),
        next_step_us=Spread.of([1e6 * (taken - usual[width]) for width, taken in after_s]),
        idle_s=IDLE_S,
        idle_cpu_s=time.process_time() - begin_cpu,
    )


def _timed(step: Callable[[], object]) -> float:
    time.sleep(PAUSE_S)
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def measure_switch(model: ModelDescription, rounds: int = 50) -> SwitchCost:
    """Steps of the model's kernel plan by 4, 2 and 4 threads in turn. Raises `EngineError` without kernels."""
    from bench.graph_runs import open_decoder

    library = kernels.library()
    planned = msgspec.structs.replace(model, graph_file=model.kernel_graphs[0])
    with open_decoder(planned, 1) as decoder:
        decoder.show(0, 0, "")
        decoder.extend(0, [int(token) for token in np.arange(1, 33)], 0)
        return switch_cost(lambda: decoder.step([7], [32]), library, (4, 2), rounds)
