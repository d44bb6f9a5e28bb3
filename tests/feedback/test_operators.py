"""What kinds of operators take, from sampled profiles."""

from __future__ import annotations

import pytest

from magnitude.engine.session_messages import PhaseProfile
from magnitude.feedback.operators import HALF_LIFE_S, MAX_SERIES, OperatorSeries

DECODE = PhaseProfile(
    phase="decode",
    tokens=1,
    run_s=(0.010, 0.010),
    operators_s={"MatMulNBits": (0.008, 0.008), "Add": (0.001, 0.001)},
)


def slower(operator_s: float) -> PhaseProfile:
    return PhaseProfile(phase="decode", tokens=1, run_s=(0.1,), operators_s={"MatMulNBits": (operator_s,)})


def test_the_largest_share_comes_first() -> None:
    series = OperatorSeries(lambda: 5.0)
    series.add("m", (DECODE,))
    matmul, add = series.figures()
    assert (matmul.operator, matmul.runs, matmul.share) == ("MatMulNBits", 2, 0.8)
    assert matmul.mean_s == pytest.approx(0.008)
    assert 0.008 <= matmul.p95_s <= 0.0089  # upper edge of a bucket
    assert (add.operator, add.share) == ("Add", 0.1)


def test_what_was_measured_long_ago_fades() -> None:
    now_s = 0.0
    series = OperatorSeries(lambda: now_s)
    series.add("m", (slower(0.001),) * 8)
    now_s = 10 * HALF_LIFE_S
    series.add("m", (slower(0.05),))
    (figures,) = series.figures()
    assert figures.mean_s > 0.04
    assert figures.p95_s >= 0.05
    assert figures.runs == 9


def test_models_and_phases_are_kept_apart() -> None:
    series = OperatorSeries(lambda: 0.0)
    series.add("a", (DECODE,))
    series.add("b", (DECODE, PhaseProfile(phase="prefill", tokens=64, run_s=(0.2,), operators_s={"Add": (0.1,)})))
    found = {(one.model, one.phase, one.operator) for one in series.figures()}
    assert len(found) == 5


def test_memory_has_a_bound() -> None:
    series = OperatorSeries(lambda: 0.0)
    for number in range(MAX_SERIES + 50):
        series.add(f"model{number}", (slower(0.001),))
    assert len(series.figures()) == MAX_SERIES
