"""Mean and quantiles of a series in constant memory, recent samples weighing more."""

from __future__ import annotations

from magnitude.policy.ageing import AgedAverage, AgedQuantiles

# A bare board's heat follows its load with a time constant of 400 s at its slowest (`board/profiles/pi5-bare.yaml`),
# so that half of a change is there after 400 s * ln 2 = 277 s: what was measured before it fades as it comes.
HALF_LIFE_S = 300.0


class RunningFigures:
    """Pure: times are monotonic seconds."""

    def __init__(self) -> None:
        self._average = AgedAverage(HALF_LIFE_S)
        self._quantiles = AgedQuantiles(HALF_LIFE_S)

    def add(self, value: float, now_s: float, weight: float = 1.0) -> None:
        """Count `value` as `weight` samples."""
        self._average.add(value, weight, now_s)
        self._quantiles.add(value, weight, now_s)

    @property
    def mean(self) -> float:
        """0 without samples. Time alone does not change it."""
        return self._average.mean

    def quantile(self, share: float) -> float:
        """The quantile `share` (0..1), at most a tenth too large; 0 without samples."""
        return self._quantiles.quantile(share)
