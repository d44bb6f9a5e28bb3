"""Operators and the processor's counters as series."""

from __future__ import annotations

import pytest

from magnitude.board.counters import CounterRates
from magnitude.feedback.counted import Roofline
from magnitude.feedback.counter_sight import CountersState
from magnitude.feedback.metrics import Metrics
from magnitude.feedback.operators import OperatorFigures

OPERATOR = OperatorFigures(
    model="m", phase="decode", operator="MatMulNBits", runs=8, mean_s=0.008, p95_s=0.009, share=0.8
)
COUNTED = CountersState(
    status="counted",
    rates=CounterRates(ipc=1.5, cache_misses_per_1000=3.0, branch_misses_per_1000=0.5, stalled_share=0.25),
    roofline={"m": Roofline(bandwidth_use=0.8, source="estimated"), "other": Roofline()},
)


def rendered(state: CountersState) -> list[str]:
    metrics = Metrics()
    metrics.watch_operators(lambda: [OPERATOR], lambda: state)
    return metrics.render().decode().splitlines()


@pytest.mark.parametrize(
    "line",
    [
        'magnitude_operator_seconds{figure="mean",model="m",operator="MatMulNBits",phase="decode"} 0.008',
        'magnitude_operator_seconds{figure="p95",model="m",operator="MatMulNBits",phase="decode"} 0.009',
        'magnitude_operator_share{model="m",operator="MatMulNBits",phase="decode"} 0.8',
        'magnitude_operator_profiled_runs_total{model="m",operator="MatMulNBits",phase="decode"} 8.0',
        "magnitude_instructions_per_cycle 1.5",
        'magnitude_misses_per_1000_instructions{kind="cache"} 3.0',
        'magnitude_misses_per_1000_instructions{kind="branch"} 0.5',
        "magnitude_stalled_share 0.25",
        'magnitude_memory_bandwidth_use{model="m",source="estimated"} 0.8',
    ],
)
def test_what_is_known_is_a_series(line: str) -> None:
    assert line in rendered(COUNTED)


def test_what_is_not_counted_has_no_series() -> None:
    lines = [line for line in rendered(CountersState()) if not line.startswith("#")]
    assert not any("instructions" in line or "stalled" in line or "bandwidth" in line for line in lines)
