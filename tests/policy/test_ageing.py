from __future__ import annotations

import math
import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.policy.ageing import (
    BUCKET_GROWTH,
    LARGEST_VALUE,
    LEAST_VALUE,
    AgedAverage,
    AgedMean,
    AgedQuantiles,
    MeanState,
    QuantileState,
    joined,
    mean_of,
)

HALF_LIFE_S = 60.0
VALUES = st.floats(1e-6, 1e6)
WEIGHTS = st.floats(0.01, 1000.0)
STEPS_S = st.floats(0.0, 100 * HALF_LIFE_S)
SAMPLES = st.lists(st.tuples(VALUES, WEIGHTS, STEPS_S), min_size=1, max_size=60)
Aged = AgedMean | AgedAverage | AgedQuantiles


def at_times(samples: list[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """The samples with the moment of each instead of the time since the last."""
    now_s, found = 1000.0, []
    for value, weight, step_s in samples:
        now_s += step_s
        found.append((value, weight, now_s))
    return found


def aged(timed: list[tuple[float, float, float]], now_s: float) -> list[float]:
    """What each sample weighs at `now_s`."""
    return [weight * 2 ** (-(now_s - at_s) / HALF_LIFE_S) for _, weight, at_s in timed]


@given(SAMPLES)
def test_means_are_those_of_all_samples_by_their_aged_weights(samples: list[tuple[float, float, float]]) -> None:
    timed = at_times(samples)
    mean, average = AgedMean(HALF_LIFE_S), AgedAverage(HALF_LIFE_S)
    for value, weight, at_s in timed:
        mean.add(value, weight, at_s)
        average.add(value, weight, at_s)
    now_s = timed[-1][2]
    weights = aged(timed, now_s)
    logs = [math.log(value) for value, _, _ in timed]
    centre = statistics.fmean(logs, weights)
    spread = math.sqrt(statistics.fmean([(one - centre) ** 2 for one in logs], weights))
    assert mean.mean == pytest.approx(math.exp(centre), rel=1e-6)
    assert mean.std == pytest.approx(spread, rel=1e-6, abs=1e-6)
    values = [value for value, _, _ in timed]
    exact = statistics.fmean(values, weights)
    assert average.mean == pytest.approx(exact, rel=1e-6, abs=1e-12 * max(values))
    for figure in (mean, average):
        assert figure.weight(now_s) == pytest.approx(sum(weights), rel=1e-6)
        assert figure.effective == pytest.approx(sum(weights) ** 2 / sum(w * w for w in weights), rel=1e-6)


@given(SAMPLES, st.floats(0.01, 1.0))
def test_a_quantile_is_at_most_a_bucket_above_the_exact_one(
    samples: list[tuple[float, float, float]], share: float
) -> None:
    timed = at_times(samples)
    figure = AgedQuantiles(HALF_LIFE_S)
    for value, weight, at_s in timed:
        figure.add(value, weight, at_s)
    weights = aged(timed, timed[-1][2])
    ranked = sorted(zip([one[0] for one in timed], weights, strict=True))

    def exact(wanted: float) -> float:
        reached = 0.0
        for value, weight in ranked:
            reached += weight
            if reached >= wanted * sum(weights):
                return value
        return ranked[-1][0]

    # Weights of a billionth are forgotten, and sums differ in their last digits.
    found = figure.quantile(share)
    assert exact(share - 1e-6) * (1 - 1e-9) <= found <= exact(share + 1e-6) * BUCKET_GROWTH * (1 + 1e-9)
    assert figure.weight(timed[-1][2]) == pytest.approx(sum(weights), rel=1e-6)


@pytest.mark.parametrize("kind", [AgedMean, AgedAverage, AgedQuantiles])
@given(samples=SAMPLES, later_s=st.floats(0, 5 * HALF_LIFE_S))
def test_a_weight_halves_with_each_half_life(
    kind: type[Aged], samples: list[tuple[float, float, float]], later_s: float
) -> None:
    figure = kind(HALF_LIFE_S)
    now_s = 0.0
    for value, weight, at_s in at_times(samples):
        figure.add(value, weight, at_s)
        now_s = at_s
    before = figure.weight(now_s)
    assert figure.weight(now_s + later_s) == pytest.approx(before / 2 ** (later_s / HALF_LIFE_S), rel=1e-6)
    assert figure.weight(now_s) == before


@pytest.mark.parametrize("kind", [AgedMean, AgedAverage])
def test_waiting_alone_changes_no_mean(kind: type[AgedAverage]) -> None:
    figure = kind(HALF_LIFE_S)
    figure.add(2.0, 1.0, 0.0)
    figure.add(8.0, 1.0, 0.0)
    at_once, later = figure.state(0.0), figure.state(10 * HALF_LIFE_S)
    assert (later.centre, later.variance, later.effective) == (at_once.centre, at_once.variance, at_once.effective)
    assert later.weight == pytest.approx(at_once.weight / 1024)
    assert figure.weight(1e9) == 0.0


def test_recent_samples_outweigh_any_number_of_old_ones() -> None:
    mean, quantiles = AgedMean(HALF_LIFE_S), AgedQuantiles(HALF_LIFE_S)
    for number in range(1000):
        mean.add(1.0, 1.0, number * 0.01)
        quantiles.add(1.0, 1.0, number * 0.01)
    later_s = 10 + 14 * HALF_LIFE_S
    mean.add(3.0, 1.0, later_s)
    quantiles.add(3.0, 1.0, later_s)
    assert mean.mean > 2.8
    assert quantiles.quantile(0.5) == pytest.approx(3.0, rel=BUCKET_GROWTH - 1)


def test_a_tenfold_run_weighs_as_much_as_one_of_a_tenth() -> None:
    mean = AgedMean(HALF_LIFE_S)
    for value in (0.01, 0.1, 0.001):
        mean.add(value, 1.0, 0.0)
    assert mean.mean == pytest.approx(0.01)


@pytest.mark.parametrize("kind", [AgedMean, AgedAverage, AgedQuantiles])
@given(samples=st.lists(st.tuples(VALUES, WEIGHTS, st.floats(-1e6, 1e6)), min_size=1, max_size=40))
def test_a_clock_that_runs_backwards_adds_no_weight(
    kind: type[Aged], samples: list[tuple[float, float, float]]
) -> None:
    backwards, held = kind(HALF_LIFE_S), kind(HALF_LIFE_S)
    latest_s = -math.inf
    for value, weight, at_s in samples:
        backwards.add(value, weight, at_s)
        latest_s = max(latest_s, at_s)
        held.add(value, weight, latest_s)
    assert backwards.weight(latest_s) == held.weight(latest_s)
    assert backwards.weight(latest_s - 1e5) == held.weight(latest_s)
    assert backwards.state(latest_s) == held.state(latest_s)


@pytest.mark.parametrize("kind", [AgedMean, AgedAverage, AgedQuantiles])
@pytest.mark.parametrize(
    ("value", "weight"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, 0.0), (1.0, -1.0), (1.0, math.inf)]
)
def test_what_cannot_be_a_sample_is_left_out(kind: type[Aged], value: float, weight: float) -> None:
    figure = kind(HALF_LIFE_S)
    figure.add(value, weight, 0.0)
    assert figure.weight(0.0) == 0.0
    figure.add(2.0, 1.0, 1.0)
    assert figure.weight(1.0) == 1.0


@pytest.mark.parametrize("half_life_s", [0.0, -1.0, math.nan])
@pytest.mark.parametrize("kind", [AgedMean, AgedAverage, AgedQuantiles])
def test_a_half_life_of_no_time_is_refused(kind: type[Aged], half_life_s: float) -> None:
    with pytest.raises(ValueError, match="half-life"):
        kind(half_life_s)


def test_nothing_is_forgotten_by_an_infinite_half_life() -> None:
    mean, quantiles = AgedMean(math.inf), AgedQuantiles(math.inf)
    for at_s in (0.0, 1e12):
        mean.add(1.0, 1.0, at_s)
        quantiles.add(1.0, 1.0, at_s)
    assert mean.weight(1e15) == quantiles.weight(1e15) == 2.0


def test_figures_without_samples_are_zero() -> None:
    mean, quantiles = AgedMean(HALF_LIFE_S), AgedQuantiles(HALF_LIFE_S)
    assert (mean.mean, mean.std, mean.effective, mean.weight(5.0)) == (0.0, 0.0, 0.0, 0.0)
    assert (quantiles.quantile(0.95), quantiles.weight(5.0)) == (0.0, 0.0)
    mean.restore(MeanState(), 0.0)
    assert mean.mean == 0.0


def test_values_of_any_size_fall_into_a_bounded_number_of_buckets() -> None:
    figure = AgedQuantiles(HALF_LIFE_S)
    for exponent in range(-300, 300):
        figure.add(10.0**exponent, 1.0, 0.0)
    assert len(figure.state(0.0).buckets) <= 406
    assert figure.quantile(0.01) == 0.0
    assert figure.quantile(1.0) == pytest.approx(LARGEST_VALUE, rel=BUCKET_GROWTH - 1)
    tiny = AgedMean(HALF_LIFE_S)
    tiny.add(0.0, 1.0, 0.0)
    assert tiny.mean == pytest.approx(LEAST_VALUE)


def test_a_series_of_years_stays_bounded_and_finite() -> None:
    figure = AgedQuantiles(HALF_LIFE_S)
    for number in range(20_000):
        figure.add(0.001 + (number % 1000) * 0.01, 1.0, number * 3600.0)
    assert len(figure.state(0.0).buckets) < 5  # an hour is sixty half-lives
    assert figure.weight(20_000 * 3600.0) < 1.0
    assert figure.quantile(0.5) == pytest.approx(9.99, rel=BUCKET_GROWTH - 1)


@given(SAMPLES, SAMPLES)
def test_what_was_kept_goes_on_under_another_clock_as_if_nothing_had_been(
    before: list[tuple[float, float, float]], after: list[tuple[float, float, float]]
) -> None:
    for figure, second, kind in (
        (AgedMean(HALF_LIFE_S), AgedMean(HALF_LIFE_S), MeanState),
        (AgedAverage(HALF_LIFE_S), AgedAverage(HALF_LIFE_S), MeanState),
    ):
        now_s = 0.0
        for value, weight, now_s in at_times(before):
            figure.add(value, weight, now_s)
        state = msgspec.json.decode(msgspec.json.encode(figure.state(now_s)), type=kind)
        second.restore(state, 0.0)
        for value, weight, at_s in at_times(after):
            figure.add(value, weight, now_s + at_s)
            second.add(value, weight, at_s)
        assert second.mean == pytest.approx(figure.mean, rel=1e-6, abs=1e-6)
        assert second.std == pytest.approx(figure.std, rel=1e-5, abs=1e-6)
        assert second.effective == pytest.approx(figure.effective, rel=1e-6)


@given(SAMPLES)
def test_kept_quantiles_come_back_with_their_weights(samples: list[tuple[float, float, float]]) -> None:
    figure, second = AgedQuantiles(HALF_LIFE_S), AgedQuantiles(HALF_LIFE_S)
    now_s = 0.0
    for value, weight, now_s in at_times(samples):
        figure.add(value, weight, now_s)
    second.restore(msgspec.json.decode(msgspec.json.encode(figure.state(now_s)), type=QuantileState), 5.0)
    assert second.weight(5.0) == pytest.approx(figure.weight(now_s))
    assert [second.quantile(one) for one in (0.05, 0.5, 0.95, 1.0)] == [
        figure.quantile(one) for one in (0.05, 0.5, 0.95, 1.0)
    ]


@given(SAMPLES, st.lists(st.integers(0, 3), min_size=60, max_size=60))
def test_series_of_parts_say_together_what_one_of_all_samples_says(
    samples: list[tuple[float, float, float]], part_of: list[int]
) -> None:
    average, averages = AgedAverage(HALF_LIFE_S), [AgedAverage(HALF_LIFE_S) for _ in range(4)]
    quantiles, parts = AgedQuantiles(HALF_LIFE_S), [AgedQuantiles(HALF_LIFE_S) for _ in range(4)]
    for (value, weight, at_s), part in zip(at_times(samples), part_of, strict=False):
        for series in (average, averages[part], quantiles, parts[part]):
            series.add(value, weight, at_s)
    largest = max(value for value, _, _ in samples)
    assert mean_of(averages) == pytest.approx(average.mean, rel=1e-6, abs=1e-9 * largest)
    whole = joined(parts)
    # A share that lies on the edge of a bucket falls to either side of it.
    for share in (0.0501, 0.4999, 0.9499):
        assert whole.quantile(share) in (
            pytest.approx(quantiles.quantile(share - 1e-6)),
            pytest.approx(quantiles.quantile(share + 1e-6)),
        )


def test_parts_without_samples_say_nothing() -> None:
    assert mean_of([AgedAverage(HALF_LIFE_S), AgedAverage(HALF_LIFE_S)]) == 0.0
    assert joined([AgedQuantiles(HALF_LIFE_S), AgedQuantiles(HALF_LIFE_S)]).quantile(0.5) == 0.0


def test_parts_that_nobody_has_added_to_for_days_still_say_what_they_said() -> None:
    average, quantiles = AgedAverage(HALF_LIFE_S), AgedQuantiles(HALF_LIFE_S)
    old, old_quantiles = AgedAverage(HALF_LIFE_S), AgedQuantiles(HALF_LIFE_S)
    for series in (old, old_quantiles):
        series.add(9.0, 1.0, 0.0)
    for series in (average, quantiles):
        series.add(2.0, 1.0, 1e7)
    assert mean_of([old, average]) == pytest.approx(2.0)
    assert joined([old_quantiles, quantiles]).quantile(0.99) == quantiles.quantile(0.99)
    assert mean_of([old]) == 9.0
