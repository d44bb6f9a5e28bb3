"""One part of a strategy in one kind of situation: what is chosen, what it costs, and what was tried against it."""

from __future__ import annotations

import math

import msgspec

from magnitude.policy.ageing import AgedAverage, AgedMean, AgedQuantiles, MeanState
from magnitude.policy.duel import HOPELESS
from magnitude.policy.learned import Choice, Entry, Evidence, Origin
from magnitude.policy.rules import Rules
from magnitude.policy.situation import Part, clockless

# What did not win is tried again after so many half-lives: by then the figures that spoke against it count for a
# quarter, or a sixteenth.
EVEN_FOR, LOST_FOR = 2.0, 4.0
# What did not win again and again is waited for twice as long each time, up to so many times as long: probes take
# energy, and nothing says that it will win the next time.
MOST_PATIENCE = 16.0
# A choice that the guard took back is left alone for longer than any other.
REVERTED_FOR = 16.0
# The longest a part keeps what it has, however often it went to and fro: so much patience costs at most an hour of
# what a better choice would have saved.
MOST_DWELL_S = 3600.0
# The level of recent runs, against that of the last hour: ten seconds are twenty reports.
RECENT_HALF_LIFE_S = 10.0
RECENT_WEIGHT = 8.0
# Half of the processor gone makes a run take 1.4 to 2.3 times as long (SmolLM2-135M on two x86 cores: by a quota, by
# affinity, by a neighbour). Less than this changes no ranking worth a new comparison (assumed).
DRIFT = math.log(1.25)
# A neighbour that comes and goes within less is noise: comparisons are of ratios and go on through it. Where every
# level were followed, none would come to an end (seen on a machine that eight others shared).
DRIFT_AGAIN_S = 300.0


class Costs:
    """What a unit of work costs by one choice: level, spread and P95, recent samples weighing more."""

    def __init__(self, half_life_s: float) -> None:
        self.level = AgedMean(half_life_s)
        self.recent = AgedMean(RECENT_HALF_LIFE_S)
        self.quantiles = AgedQuantiles(half_life_s)

    def add(self, cost_s: float, weight: float, now_s: float) -> None:
        self.level.add(cost_s, weight, now_s)
        self.recent.add(cost_s, weight, now_s)
        self.quantiles.add(cost_s, weight, now_s)

    def cost_s(self, now_s: float) -> float:
        """NaN while nothing is known."""
        return self.level.mean if self.level.weight(now_s) > 0 else math.nan

    def drifted(self, now_s: float) -> bool:
        """Whether the last seconds are at another level than all of it."""
        if self.recent.weight(now_s) < RECENT_WEIGHT:
            return False
        # Two standard errors of what was seen lately: under noise the level itself is not known better.
        sure = DRIFT + 2.0 * self.recent.std / math.sqrt(max(1.0, self.recent.effective))
        return abs(math.log(self.recent.mean / self.level.mean)) > sure

    def begin_anew(self, now_s: float) -> None:
        """Only the last seconds still count."""
        cost_s, weight = self.recent.mean, self.recent.weight(now_s)
        half_life_s = self.level.half_life_s
        self.level, self.quantiles = AgedMean(half_life_s), AgedQuantiles(half_life_s)
        self.level.add(cost_s, weight, now_s)
        self.quantiles.add(cost_s, weight, now_s)


class Dismissal(msgspec.Struct, frozen=True):
    """A challenger that did not win: not before `until_s` again. `ratio` is its time by the chosen one's."""

    until_s: float
    ratio: float
    reason: str


class Contest:
    """`chosen` is what holds; since `since_s`."""

    def __init__(self, part: Part, key: str, chosen: Choice, rules: Rules, now_s: float) -> None:
        self.part = part
        self.key = key
        self.work = clockless(key)  # what is compared, at whatever clock
        self.chosen = chosen
        self.origin: Origin = "measured"
        self.begun_s = now_s
        self.since_s = now_s
        self.previous: Choice | None = None  # what the last switch left
        self.watched = True  # whether the last switch has proved itself under load
        self.busy = AgedAverage(rules.half_life_s)  # its weight is seconds of runs: how much hangs on this contest
        self.probed = AgedAverage(rules.half_life_s)  # the same of probes
        self.costs: dict[Choice, Costs] = {}
        self.dismissed: dict[Choice, Dismissal] = {}
        self._rules = rules
        self._left: set[Choice] = set()
        self._returns = 0
        self._switched = False
        self._restored = False
        self._drifted_s = -math.inf
        self._rejected: dict[Choice, str] = {}
        self._lost: dict[Choice, int] = {}

    def observe(self, choice: Choice, cost_s: float, runs: int, total_s: float, now_s: float) -> bool:
        """Runs by `choice`. True when the level of the chosen one has moved, so that old comparisons say nothing."""
        if not (cost_s > 0 and math.isfinite(cost_s)):
            return False
        self.busy.add(1.0, total_s, now_s)
        costs = self.costs.setdefault(choice, Costs(self._rules.half_life_s))
        costs.add(cost_s, 1.0, now_s)
        if choice != self.chosen or now_s < self._drifted_s + DRIFT_AGAIN_S or not costs.drifted(now_s):
            return False
        self._drifted_s = now_s
        costs.begin_anew(now_s)
        self._lost.clear()
        for other in [other for other in self.costs if other != self.chosen]:
            del self.costs[other]
        self.dismissed = {
            other: dismissal
            for other, dismissal in self.dismissed.items()
            if dismissal.until_s - now_s > LOST_FOR * self._rules.half_life_s
        }
        return True

    def may_try(self, choice: Choice, now_s: float) -> bool:
        dismissal = self.dismissed.get(choice)
        return choice != self.chosen and (dismissal is None or now_s >= dismissal.until_s)

    def lost_clearly(self, choice: Choice, now_s: float) -> bool:
        """Whether it has lost by so much that it need not be tried under conditions like these either."""
        dismissal = self.dismissed.get(choice)
        return dismissal is not None and now_s < dismissal.until_s and dismissal.ratio > HOPELESS

    @property
    def settled_s(self) -> float:
        """From then on it may be switched again."""
        if not self._switched:
            return -math.inf
        return self.since_s + min(MOST_DWELL_S, self._rules.dwell_s * 2.0**self._returns)

    def switch(self, to: Choice, now_s: float, *, ratio: float = math.nan, pairs: int = 0) -> None:
        """A challenger has won, with that ratio of times over so many pairs: what is known of its cost until it has
        run by itself."""
        before = self.costs.get(self.chosen)
        if before is not None and math.isfinite(ratio) and math.isfinite(cost_s := before.cost_s(now_s) * ratio):
            costs = self.costs.setdefault(to, Costs(self._rules.half_life_s))
            if costs.level.weight(now_s) < pairs:
                costs.level.add(cost_s, float(pairs), now_s)
                costs.quantiles.add(cost_s, float(pairs), now_s)
        self._left.add(self.chosen)
        self._returns += to in self._left
        self.previous, self.chosen, self.since_s = self.chosen, to, now_s
        self.origin, self.watched = "measured", False
        self.dismissed.pop(to, None)
        self._switched = True

    def revert(self, reason: str, now_s: float) -> Choice:
        """Take the last switch back; what was switched to is not tried again for long. The choice that holds then."""
        assert self.previous is not None, "there is a switch to take back"
        bad, self.chosen, self.previous = self.chosen, self.previous, None
        self.since_s, self.watched = now_s, True
        self._returns += 1
        self._left.add(bad)
        self.reject(bad, reason, now_s)
        return self.chosen

    def reject(self, choice: Choice, reason: str, now_s: float, half_lives: float = REVERTED_FOR) -> None:
        """Do not try it for long."""
        if choice != self.chosen:
            self._rejected[choice] = reason
            self._dismiss(choice, half_lives, math.nan, reason, now_s)

    def rejections(self, now_s: float) -> list[tuple[Choice, str]]:
        """What the guard took back, with the reason, as long as it holds."""
        return [(choice, reason) for choice, reason in self._rejected.items() if not self.may_try(choice, now_s)]

    @property
    def decided(self) -> bool:
        """Whether what holds is more than a beginning: known from before, or compared with something."""
        return self._switched or self._restored or bool(self.dismissed)

    def keep(self, challenger: Choice, ratio: float, *, lost: bool, reason: str, now_s: float) -> None:
        """The challenger did not win."""
        before = self._lost.get(challenger, 0)
        self._lost[challenger] = before + 1
        patience = min(MOST_PATIENCE, 2.0**before)
        self._dismiss(challenger, (LOST_FOR if lost else EVEN_FOR) * patience, ratio, reason, now_s)

    def restore(self, entry: Entry, now_s: float, rules: Rules) -> None:
        """Go on from what was known before. Old samples weigh at most a window, so that new ones soon count more."""
        self.chosen, self.origin, self._restored = entry.chosen, entry.origin, True
        for evidence in entry.evidence:
            if not evidence.cost_s > 0:
                continue
            weight = min(evidence.weight, float(rules.window))
            costs = self.costs.setdefault(evidence.choice, Costs(rules.half_life_s))
            level = MeanState(
                weight=weight, centre=math.log(evidence.cost_s), variance=evidence.log_spread**2, effective=weight
            )
            costs.level.restore(level, now_s)
            # Of all that was known of the distribution two figures are kept.
            costs.quantiles.add(evidence.cost_s, 0.94 * weight, now_s)
            costs.quantiles.add(max(evidence.p95_s, evidence.cost_s), 0.06 * weight, now_s)
            if evidence.choice != entry.chosen and evidence.weight >= rules.window:
                self._dismiss(evidence.choice, EVEN_FOR, math.nan, "known from before", now_s)

    def entry(self, now_s: float) -> Entry:
        """As it is dumped. What was only compared is given by its ratio to what is chosen."""
        chosen = self.costs.get(self.chosen)
        base_s = chosen.cost_s(now_s) if chosen is not None else math.nan
        evidence = [
            Evidence(
                choice=choice,
                cost_s=costs.cost_s(now_s),
                log_spread=costs.level.std,
                p95_s=costs.quantiles.quantile(0.95),
                weight=costs.level.weight(now_s),
            )
            for choice, costs in self.costs.items()
            if costs.level.weight(now_s) > 0
        ]
        measured = {one.choice for one in evidence}
        for choice, dismissal in self.dismissed.items():
            if choice not in measured and math.isfinite(dismissal.ratio) and math.isfinite(base_s):
                cost_s = base_s * dismissal.ratio
                evidence.append(
                    Evidence(choice=choice, cost_s=cost_s, p95_s=cost_s, weight=float(self._rules.window))
                )
        evidence.sort(key=lambda one: (one.choice != self.chosen, one.choice.choice_id))
        return Entry(part=self.part, key=self.key, chosen=self.chosen, origin=self.origin, evidence=tuple(evidence))

    def _dismiss(self, choice: Choice, half_lives: float, ratio: float, reason: str, now_s: float) -> None:
        self.dismissed[choice] = Dismissal(now_s + half_lives * self._rules.half_life_s, ratio, reason)
