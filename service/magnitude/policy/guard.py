"""Watches tasks by the strategy that they ran with: one under which more of them fail is not worth its speed."""

from __future__ import annotations

import math

import msgspec

from magnitude.policy.ageing import AgedAverage, AgedQuantiles

# So improbable must as many failures be if the strategy were as good as what is known of the one before. That is
# uncertain itself: of a hundred switches to something equal one to three are taken back for nothing where 1 to 3 % of
# tasks fail (1,500 simulated each, 100 and 300 tasks a side), which costs the gain of the switch.
IMPROBABLE = 1e-3
# A 95th percentile of fewer tasks is one of the largest times, whichever came.
LEAST_TASKS = 20
# Tasks with half a failure that count for what ran before: a strategy that was used for ten tasks without a failure
# is not perfect. Assumed: a service in good order fails one task in a hundred.
PRIOR_TASKS, PRIOR_FAILED = 50.0, 0.5
# Fewer failures are an accident.
LEAST_FAILURES = 3
# Strategies that are remembered: of each part a few choices, and the combinations that came up.
MOST_STRATEGIES = 64


class Outcomes(msgspec.Struct, frozen=True):
    """Tasks and how many of them failed, after ageing."""

    tasks: float
    failed: float

    @property
    def rate(self) -> float:
        return self.failed / self.tasks if self.tasks else 0.0


class TaskGuard:
    """Shares of failed tasks by strategy."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._failed: dict[str, AgedAverage] = {}
        self._times: dict[str, AgedQuantiles] = {}

    def add(self, strategy_id: str, *, failed: bool, now_s: float) -> None:
        series = self._failed.pop(strategy_id, None) or AgedAverage(self._half_life_s)
        series.add(1.0 if failed else 0.0, 1.0, now_s)
        self._failed[strategy_id] = series
        while len(self._failed) > MOST_STRATEGIES:
            del self._failed[next(iter(self._failed))]

    def took(self, variant: str, run_s: float, now_s: float) -> None:
        """A task with those weights that went well took so long."""
        self._times.setdefault(variant, AgedQuantiles(self._half_life_s)).add(run_s, 1.0, now_s)

    def p95_s(self, variant: str, now_s: float) -> float:
        """95th percentile of tasks' times with those weights; 0 while too few are known."""
        times = self._times.get(variant)
        return times.quantile(0.95) if times is not None and times.weight(now_s) >= LEAST_TASKS else 0.0

    def outcomes(self, strategy_id: str, now_s: float) -> Outcomes:
        series = self._failed.get(strategy_id)
        if series is None:
            return Outcomes(0.0, 0.0)
        tasks = series.weight(now_s)
        return Outcomes(tasks, tasks * series.mean)

    def worse(self, now_id: str, before_id: str, now_s: float) -> str:
        """Why tasks fail more often under `now_id` than under `before_id`; "" while they surely do not."""
        now, before = self.outcomes(now_id, now_s), self.outcomes(before_id, now_s)
        if now.failed < LEAST_FAILURES or not fails_more(now, before):
            return ""
        return f"{now.rate:.1%} of {now.tasks:.0f} tasks failed, before {before.rate:.1%} of {before.tasks:.0f}"


def fails_more(now: Outcomes, before: Outcomes) -> bool:
    """Whether `now` fails more often than `before`, surely: so many failures would hardly happen by chance (Poisson)
    at the share that is known of before."""
    share = (before.failed + PRIOR_FAILED) / (before.tasks + PRIOR_TASKS)
    return _at_least(math.floor(now.failed), share * now.tasks) < IMPROBABLE


def _at_least(count: int, expected: float) -> float:
    """Probability of `count` or more events where `expected` are."""
    below = sum(math.exp(n * math.log(expected) - expected - math.lgamma(n + 1)) for n in range(count))
    return max(0.0, 1.0 - below)
