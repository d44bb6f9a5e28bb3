from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.board.sampling_rate import (
    CALM_AFTER_S,
    CALM_S,
    FAST_S,
    MOVE_C,
    STILL_AFTER_S,
    STILL_S,
    SamplingRate,
    check_period,
)
from magnitude.errors import ConfigError


def flat(for_s: float) -> SamplingRate:
    rate = SamplingRate()
    rate.saw(50.0, 0.0)
    rate.saw(50.0, for_s)
    return rate


def test_a_temperature_that_stays_is_looked_at_less_and_less_often() -> None:
    assert flat(1.0).period_s(1.0) == FAST_S
    assert flat(STILL_AFTER_S).period_s(STILL_AFTER_S) == STILL_S
    assert flat(CALM_AFTER_S).period_s(CALM_AFTER_S) == CALM_S


def test_a_move_brings_the_fast_rate_back() -> None:
    rate = flat(100.0)
    rate.saw(50.0 + MOVE_C, 100.1)
    assert rate.period_s(100.1) == FAST_S


def test_the_flicker_of_a_sensor_between_two_steps_is_no_move() -> None:
    rate = SamplingRate()
    for tenths in range(1000):
        rate.saw(50.0 + 0.55 * (tenths % 2), tenths / 10)
    assert rate.period_s(100.0) == CALM_S


def test_a_slow_drift_is_a_move_in_the_end() -> None:
    rate = SamplingRate()
    for second in range(300):
        rate.saw(50.0 + second / 20, float(second))  # 3 °C a minute
    assert rate.period_s(300.0) < CALM_S


def test_work_that_begins_brings_the_fast_rate_back() -> None:
    rate = flat(100.0)
    rate.hurry(100.0)
    assert rate.period_s(100.0) == FAST_S


def test_losing_the_sensors_is_a_move_and_having_none_is_not() -> None:
    rate = flat(100.0)
    rate.saw(None, 100.0)
    assert rate.period_s(100.0) == FAST_S
    rate.saw(None, 200.0)
    assert rate.period_s(200.0) == CALM_S
    rate.saw(50.0, 201.0)
    assert rate.period_s(201.0) == FAST_S


@pytest.mark.parametrize("period_s", [0.0, 0.05, 0.099, -1.0, float("nan")])
def test_a_period_that_cannot_be_had_is_refused_with_the_reason(period_s: float) -> None:
    with pytest.raises(ConfigError, match="100 ms is the fastest"):
        check_period(period_s)
    with pytest.raises(ConfigError):
        SamplingRate(period_s)


@given(st.floats(FAST_S, 5.0), st.lists(st.tuples(st.floats(0, 30), st.none() | st.floats(20, 100))))
def test_the_period_is_never_shorter_than_what_was_asked_for(
    period_s: float, seen: list[tuple[float, float | None]]
) -> None:
    rate, now_s = SamplingRate(period_s), 0.0
    for step_s, temp_c in seen:
        now_s += step_s
        rate.saw(temp_c, now_s)
        assert period_s <= rate.period_s(now_s) <= max(period_s, CALM_S)
