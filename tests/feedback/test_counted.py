"""Rates of what the processor counts, and the roofline position."""

from __future__ import annotations

import pytest

from magnitude.board.counters import CounterRates, CounterReading
from magnitude.feedback.counted import CounterWatch, roofline


def reading(thousands: int) -> CounterReading:
    return CounterReading(cycles=2000 * thousands, instructions=1000 * thousands, cache_misses=thousands)


def test_a_stretch_of_work_gives_rates() -> None:
    watch = CounterWatch()
    for second in range(12):
        watch.beat(reading(second), busy_s=0.8 * second, now_s=float(second))
    assert watch.rates is not None
    assert watch.rates.ipc == 0.5
    # Over the time that was computed, not over all of it.
    assert watch.rates.read_bytes_s == pytest.approx(10 * 64 / 8.0)


def test_an_idle_stretch_says_nothing() -> None:
    watch = CounterWatch()
    for second in range(40):
        watch.beat(reading(second), busy_s=0.1 * second, now_s=float(second))
    assert watch.rates is None


def test_another_engine_counts_from_zero() -> None:
    watch = CounterWatch()
    watch.beat(reading(1000), busy_s=0.0, now_s=0.0)
    watch.engine_gone()
    for second in range(1, 14):
        watch.beat(reading(second), busy_s=float(second), now_s=float(second))
    assert watch.rates is not None and watch.rates.ipc == 0.5


def test_nothing_counted_is_no_rate() -> None:
    watch = CounterWatch()
    for second in range(40):
        watch.beat(None, busy_s=float(second), now_s=float(second))
    assert watch.rates is None


def test_what_the_processor_counts_goes_before_an_estimate() -> None:
    counted = roofline(CounterRates(read_bytes_s=7e9), read_bytes_s=10e9, weight_bytes=10**8, step_s=0.05)
    assert (counted.bandwidth_use, counted.source) == (0.7, "counted")
    estimated = roofline(CounterRates(), read_bytes_s=10e9, weight_bytes=10**8, step_s=0.0125)
    assert (estimated.bandwidth_use, estimated.source) == (0.8, "estimated")


@pytest.mark.parametrize("missing", [{"read_bytes_s": None}, {"step_s": None}, {"weight_bytes": 0}])
def test_a_position_of_which_a_part_is_unknown_is_not_available(missing: dict[str, float | None]) -> None:
    known: dict[str, float | None] = {"read_bytes_s": 10e9, "weight_bytes": 10**8, "step_s": 0.01, **missing}
    assert roofline(None, **known).source == "not available"  # type: ignore[arg-type]
