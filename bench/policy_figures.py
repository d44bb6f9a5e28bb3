"""What runs of a changing load come to: the best fixed strategy, the best one for each phase, and what is lost
against them. Arithmetic only."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import msgspec

from bench.health import percentile
from bench.policy_work import PhaseRun
from bench.spread import Spread, paired_ratio

DEFAULT, LOOP = "shipped default", "loop on"
# What the loop is to reach.
LEAST_RATIO, MOST_REGRET = 1.00, 0.05
# Equal P95 by less than what equal runs differ by.
MOST_P95 = 1.05
RESAMPLES = 2000


class LoadRun(msgspec.Struct, frozen=True, kw_only=True):
    """One contender through the whole load, once. `strategies`: what was in force at the end of each phase."""

    contender: str
    round: int
    phases: tuple[PhaseRun, ...]
    strategies: tuple[str, ...] = ()
    switches: int = 0

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)

    @property
    def p95_s(self) -> float:
        """Of all requests."""
        return percentile([seconds for phase in self.phases for seconds in phase.request_s], 0.95)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The loop beside the fixed strategies. Times are medians over the rounds; `ratio` is the best single fixed
    strategy's time by the loop's, formed in each round; above 1 the loop is faster. `oracle_s` takes the best fixed
    strategy of each phase, by the same medians: it has chosen among as many noisy figures as there are strategies, so
    it is too good. `honest_oracle_s` chooses by the other rounds and counts this one. Regret is the loop's time above
    that."""

    best_fixed: str
    ratio: Spread
    ratio_to_default: Spread
    oracle_s: float
    regret: float
    honest_oracle_s: float
    honest_regret: float
    p95_ratio: Spread
    oracle: dict[str, str]

    @property
    def missed(self) -> list[str]:
        found = []
        if self.ratio.median < LEAST_RATIO:
            found.append(
                f"the loop is {self.ratio.median:.3f} x as fast as {self.best_fixed}, goal {LEAST_RATIO:.2f}"
            )
        if self.honest_regret > MOST_REGRET:
            found.append(f"the loop is {self.honest_regret:.1%} above the per-phase oracle, goal {MOST_REGRET:.0%}")
        if self.p95_ratio.median > MOST_P95:
            found.append(f"the loop's P95 is {self.p95_ratio.median:.3f} x the best fixed strategy's, goal 1")
        return found


def verdict(runs: Sequence[LoadRun]) -> Verdict:
    """Raises `ValueError` where the loop, the default or any fixed strategy is missing in a round."""
    table = by_contender(runs)
    fixed = [name for name in table if name not in (DEFAULT, LOOP)]
    if not fixed or LOOP not in table or DEFAULT not in table:
        raise ValueError("the loop, the default and at least one fixed strategy are to be compared")
    loop = table[LOOP]
    total = {name: median(run.seconds for run in table[name]) for name in fixed}
    best = min(total, key=lambda name: total[name])
    seconds = {name: [run.seconds for run in rounds] for name, rounds in table.items()}
    places = range(len(loop[0].phases))
    chosen = [best_of(table, fixed, place, range(len(loop))) for place in places]
    oracle_s = sum(median(_times(table[name], place)) for name, place in zip(chosen, places, strict=True))
    honest = [
        table[best_of(table, fixed, place, [other for other in range(len(loop)) if other != at] or [at])][at]
        .phases[place]
        .seconds
        for place in places
        for at in range(len(loop))
    ]
    honest_s = sum(honest) / len(loop)
    loop_s = sum(run.seconds for run in loop) / len(loop)
    by_phase = sum(median(_times(loop, place)) for place in places)
    return Verdict(
        best_fixed=best,
        ratio=paired_ratio(seconds[best], seconds[LOOP]),
        ratio_to_default=paired_ratio(seconds[DEFAULT], seconds[LOOP]),
        oracle_s=oracle_s,
        regret=by_phase / oracle_s - 1.0,
        honest_oracle_s=honest_s,
        honest_regret=loop_s / honest_s - 1.0,
        p95_ratio=paired_ratio([run.p95_s for run in loop], [run.p95_s for run in table[best]]),
        oracle={f"{place + 1} {loop[0].phases[place].phase}": chosen[place] for place in places},
    )


def by_contender(runs: Sequence[LoadRun]) -> dict[str, list[LoadRun]]:
    """Rounds in order; only those that every contender has been through."""
    rounds: dict[int, set[str]] = {}
    for run in runs:
        rounds.setdefault(run.round, set()).add(run.contender)
    everyone = {run.contender for run in runs}
    whole = {at for at, names in rounds.items() if names == everyone}
    table: dict[str, list[LoadRun]] = {}
    for run in sorted(runs, key=lambda run: run.round):
        if run.round in whole:
            table.setdefault(run.contender, []).append(run)
    return table


def best_of(table: Mapping[str, Sequence[LoadRun]], names: Sequence[str], place: int, rounds: Sequence[int]) -> str:
    """The strategy with the least median time of that phase over these rounds."""
    return min(names, key=lambda name: median(table[name][at].phases[place].seconds for at in rounds))


def _times(rounds: Sequence[LoadRun], place: int) -> list[float]:
    return [run.phases[place].seconds for run in rounds]


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A figure with its 95 % interval by bootstrap."""

    value: float
    low: float
    high: float


def bootstrap(
    pairs: Sequence[tuple[float, float]],
    figure: Callable[[Sequence[float]], float] = median,
    *,
    seed: int = 1,
) -> Interval:
    """`figure` of the first ones by `figure` of the second ones, pairs resampled together (Efron's percentile
    bootstrap). Raises `ValueError` without pairs."""
    if not pairs:
        raise ValueError("no pairs to compare")
    chance = random.Random(seed)

    def ratio(sample: Sequence[tuple[float, float]]) -> float:
        below = figure([second for _, second in sample])
        return figure([first for first, _ in sample]) / below if below else math.inf

    drawn = sorted(ratio([chance.choice(pairs) for _ in pairs]) for _ in range(RESAMPLES))
    return Interval(
        value=ratio(pairs), low=drawn[int(0.025 * RESAMPLES)], high=drawn[min(RESAMPLES - 1, int(0.975 * RESAMPLES))]
    )
