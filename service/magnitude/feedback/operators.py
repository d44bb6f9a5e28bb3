"""Where the time of runs goes, by kind of operator: ageing figures of sampled profiles, not a log of operators."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec

from magnitude.engine.session_messages import PhaseProfile, ProfilePhase
from magnitude.policy.ageing import AgedAverage, AgedMean, AgedQuantiles

# Profiles come hours apart: half of what is known is a day old at most, so that an operator that another version or
# another clock has made slower shows within a day.
HALF_LIFE_S = 86400.0
# Models, phases and kinds of operators together. A transformer has about 20 kinds; beyond it the oldest goes.
MAX_SERIES = 1024


class OperatorFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What all operators of one kind take in a run of the phase, the mean (geometric) and the 95th percentile, and
    their share of the run. `runs` that were profiled since the service was started; recent ones weigh more."""

    model: str
    phase: ProfilePhase
    operator: str
    runs: int
    mean_s: float
    p95_s: float
    share: float


class _Series:
    __slots__ = ("mean", "quantiles", "runs", "share")

    def __init__(self) -> None:
        self.runs = 0
        self.mean = AgedMean(HALF_LIFE_S)
        self.quantiles = AgedQuantiles(HALF_LIFE_S)
        self.share = AgedAverage(HALF_LIFE_S)


class OperatorSeries:
    """In constant memory. Not kept over a restart: the next profile tells it anew."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._series: dict[tuple[str, ProfilePhase, str], _Series] = {}

    def add(self, model: str, phases: Iterable[PhaseProfile]) -> None:
        now_s = self._monotonic()
        for phase in phases:
            for kind, times_s in phase.operators_s.items():
                series = self._of((model, phase.phase, kind))
                for operator_s, run_s in zip(times_s, phase.run_s, strict=True):
                    series.runs += 1
                    series.mean.add(operator_s, 1.0, now_s)
                    series.quantiles.add(operator_s, 1.0, now_s)
                    series.share.add(operator_s / run_s if run_s > 0 else 0.0, 1.0, now_s)

    def figures(self) -> list[OperatorFigures]:
        """By model and phase, the largest share first."""
        found = [
            OperatorFigures(
                model=model,
                phase=phase,
                operator=kind,
                runs=series.runs,
                mean_s=series.mean.mean,
                p95_s=series.quantiles.quantile(0.95),
                share=round(series.share.mean, 4),
            )
            for (model, phase, kind), series in self._series.items()
        ]
        return sorted(found, key=lambda one: (one.model, one.phase, -one.share, one.operator))

    def _of(self, key: tuple[str, ProfilePhase, str]) -> _Series:
        if key not in self._series and len(self._series) >= MAX_SERIES:
            del self._series[next(iter(self._series))]
        return self._series.setdefault(key, _Series())
