"""Figures that forget: the weight of a sample halves with each half-life that passes, in constant memory.

By time, not by the number of samples: a device that has warmed up forgets its cold start as quickly when it is busy
as when it is not, and a burst of small tasks does not push out everything else. Ageing alone changes no mean and no
quantile, only how much they weigh against what comes next. Times are monotonic seconds; one that runs backwards
counts as the latest seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

# A quantile is at most this much too large: 10 % is below the noise of a board's latencies.
BUCKET_GROWTH = 1.1
# What is smaller counts as this: no clock that we read resolves a nanosecond. Larger than a year: a year. Together
# 405 buckets at most, whatever is added.
LEAST_VALUE = 1e-9
LARGEST_VALUE = 3.2e7
_LOG_GROWTH = math.log(BUCKET_GROWTH)
_LEAST_BUCKET = 0
_LARGEST_BUCKET = math.ceil(math.log(LARGEST_VALUE / LEAST_VALUE, BUCKET_GROWTH))

# Weights are kept as of a fixed moment, in units that double with each half-life: adding then touches one bucket
# instead of all. After so many half-lives the moment is moved up; 2**64 is far from the 2**1023 of a float.
_HALF_LIVES_KEPT = 64
# Buckets that hold less than this share of everything go when the moment is moved: no quantile sees them.
_LEAST_SHARE = 1e-9


class MeanState(msgspec.Struct, frozen=True, kw_only=True):
    """An `AgedMean` or `AgedAverage` as it is kept: `weight` at that moment, `centre` and `variance` of the values or
    of their logarithms, `effective` samples."""

    weight: float = 0.0
    centre: float = 0.0
    variance: float = 0.0
    effective: float = 0.0


class QuantileState(msgspec.Struct, frozen=True, kw_only=True):
    """An `AgedQuantiles` as it is kept: weights at that moment by bucket."""

    buckets: dict[int, float] = {}


class AgedAverage:
    """Arithmetic mean and standard deviation of values of any size, as shares, rates and temperatures have them."""

    def __init__(self, half_life_s: float) -> None:
        """`half_life_s` > 0; infinite: nothing is forgotten."""
        if not half_life_s > 0:
            raise ValueError(f"a half-life is more than no time, not {half_life_s}")
        self.half_life_s = half_life_s
        self._at_s = -math.inf
        self._weight = 0.0
        self._squared_weights = 0.0
        self._centre = 0.0
        self._deviation = 0.0  # weighted sum of squared deviations from the mean

    def add(self, value: float, weight: float, now_s: float) -> None:
        """Count `value` as `weight` samples. What is not finite, or weighs nothing, is left out."""
        if not (0 < weight < math.inf and -math.inf < value < math.inf):
            return
        # West 1979, with every weight so far multiplied by what is left of it.
        if now_s > self._at_s:
            if self._weight:
                left = _left(now_s - self._at_s, self.half_life_s)
                self._weight *= left
                self._squared_weights *= left * left
                self._deviation *= left
            self._at_s = now_s
        before = self._weight
        self._weight = total = before + weight
        self._squared_weights += weight * weight
        step = value - self._centre
        share = weight / total
        self._centre += step * share
        self._deviation += before * share * step * step  # in this form rounding never makes it negative

    @property
    def mean(self) -> float:
        """0 without samples."""
        return self._centre

    @property
    def std(self) -> float:
        """Standard deviation; 0 without samples."""
        return math.sqrt(self._deviation / self._weight) if self._weight > 0 else 0.0

    @property
    def effective(self) -> float:
        """How many samples of equal weight would say as much about the mean (Kish 1965): `std / sqrt(effective)` is
        its standard error. Samples that have aged count less beside new ones."""
        return self._weight**2 / self._squared_weights if self._squared_weights > 0 else 0.0

    def weight(self, now_s: float) -> float:
        """The samples behind it, after ageing."""
        return self._weight * _left(now_s - self._at_s, self.half_life_s) if self._weight else 0.0

    def state(self, now_s: float) -> MeanState:
        """To be kept; `restore` takes it, also after another boot, whose clock starts anew."""
        return MeanState(
            weight=self.weight(now_s), centre=self._centre, variance=self.std**2, effective=self.effective
        )

    def restore(self, state: MeanState, now_s: float) -> None:
        """Begin with what was kept. Time between is not counted: a board that is off does not change."""
        self._at_s = now_s
        self._weight = state.weight
        self._centre = state.centre
        self._deviation = state.variance * state.weight
        self._squared_weights = state.weight**2 / state.effective if state.effective > 0 else 0.0


class AgedMean(AgedAverage):
    """Mean and spread of positive values by their logarithms, as times have them: one run that takes ten times as
    long as the others counts as much as one that takes a tenth, and noise is a share of the value.

    `mean` is the geometric mean, in the values' own unit; `std` the standard deviation of the natural logarithm
    (0.1: about a tenth). Values below `LEAST_VALUE` count as that.
    """

    def add(self, value: float, weight: float, now_s: float) -> None:
        super().add(math.log(max(value, LEAST_VALUE)) if math.isfinite(value) else value, weight, now_s)

    @property
    def mean(self) -> float:
        """0 without samples."""
        return math.exp(self._centre) if self._weight > 0 else 0.0


class AgedQuantiles:
    """Quantiles of values that are not negative, from buckets that grow by a tenth."""

    def __init__(self, half_life_s: float) -> None:
        """`half_life_s` > 0; infinite: nothing is forgotten."""
        if not half_life_s > 0:
            raise ValueError(f"a half-life is more than no time, not {half_life_s}")
        self.half_life_s = half_life_s
        self._from_s: float | None = None  # the moment as of which weights are kept
        self._at_s = 0.0  # the latest seen
        self._weights: dict[int, float] = {}
        self._total = 0.0

    def add(self, value: float, weight: float, now_s: float) -> None:
        """Count `value` as `weight` samples. What is not finite, or weighs nothing, is left out."""
        if not (0 < weight < math.inf and -math.inf < value < math.inf):
            return
        if self._from_s is None:
            self._from_s = self._at_s = now_s
        self._at_s = max(self._at_s, now_s)
        if self._at_s - self._from_s > _HALF_LIVES_KEPT * self.half_life_s:
            self._move_up()
        grown = weight / _left(self._at_s - self._from_s, self.half_life_s)
        bucket = _bucket_of(value)
        self._weights[bucket] = self._weights.get(bucket, 0.0) + grown
        self._total += grown

    def quantile(self, share: float) -> float:
        """Upper edge of the bucket that holds the quantile `share` (0..1); 0 without samples, and for values that are
        none."""
        edge = 0.0
        reached = 0.0
        # Not the running total: after many additions it differs from the sum in its last digits. A hair less than the
        # share: which bucket is the last must not hang on the order of rounding.
        wanted = share * sum(self._weights.values()) * (1.0 - _LEAST_SHARE)
        for bucket in sorted(self._weights):
            edge = _edge_of(bucket)
            reached += self._weights[bucket]
            if reached >= wanted:
                break
        return edge

    def weight(self, now_s: float) -> float:
        """The samples behind it, after ageing."""
        if self._from_s is None:
            return 0.0
        return self._total * _left(max(now_s, self._at_s) - self._from_s, self.half_life_s)

    def state(self, now_s: float) -> QuantileState:
        """To be kept; `restore` takes it, also after another boot, whose clock starts anew."""
        if self._from_s is None:
            return QuantileState()
        left = _left(max(now_s, self._at_s) - self._from_s, self.half_life_s)
        return QuantileState(buckets={bucket: kept * left for bucket, kept in sorted(self._weights.items())})

    def restore(self, state: QuantileState, now_s: float) -> None:
        """Begin with what was kept. Time between is not counted: a board that is off does not change."""
        self._weights = {min(max(key, _LEAST_BUCKET), _LARGEST_BUCKET): kept for key, kept in state.buckets.items()}
        self._total = sum(self._weights.values())
        self._from_s = self._at_s = now_s

    def _move_up(self) -> None:
        assert self._from_s is not None
        left = _left(self._at_s - self._from_s, self.half_life_s)
        least = self._total * left * _LEAST_SHARE
        self._weights = {key: kept * left for key, kept in self._weights.items() if kept * left > least}
        self._total = sum(self._weights.values())
        self._from_s = self._at_s


def mean_of(parts: Sequence[AgedAverage]) -> float:
    """The mean of all their samples, as if one had taken them; 0 without samples. Half-lives are the same, and
    none is an `AgedMean`."""
    at_s = max((part._at_s for part in parts), default=0.0)
    weights = [part.weight(at_s) for part in parts]
    total = sum(weights)
    return sum(weight * part.mean for weight, part in zip(weights, parts, strict=True)) / total if total else 0.0


def joined(parts: Sequence[AgedQuantiles]) -> AgedQuantiles:
    """One with all their samples. Half-lives are the same, and there is one at least."""
    at_s = max(part._at_s for part in parts)
    buckets: dict[int, float] = {}
    for part in parts:
        for bucket, weight in part.state(at_s).buckets.items():
            buckets[bucket] = buckets.get(bucket, 0.0) + weight
    whole = AgedQuantiles(parts[0].half_life_s)
    whole.restore(QuantileState(buckets=buckets), at_s)
    return whole


def _left(passed_s: float, half_life_s: float) -> float:
    """The share of a weight that is left."""
    return math.pow(2.0, -max(0.0, passed_s) / half_life_s)


def _bucket_of(value: float) -> int:
    if value <= LEAST_VALUE:
        return _LEAST_BUCKET
    return min(math.ceil(math.log(value / LEAST_VALUE) / _LOG_GROWTH), _LARGEST_BUCKET)


def _edge_of(bucket: int) -> float:
    return LEAST_VALUE * BUCKET_GROWTH**bucket if bucket > _LEAST_BUCKET else 0.0
