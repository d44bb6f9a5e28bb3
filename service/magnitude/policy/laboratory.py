"""The strategy loop's experiments: what is tried next, how it is measured, and what follows from it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.contest import Contest
from magnitude.policy.duel import HOPELESS
from magnitude.policy.experiment import GIVE_UP_S, Experiment, LossBudget, most_used
from magnitude.policy.learned import Choice
from magnitude.policy.moment import Moment
from magnitude.policy.rules import Rules
from magnitude.policy.session_pool import SessionPool
from magnitude.policy.situation import Part, clockless, wider
from magnitude.policy.table import Table, fits
from magnitude.policy.terms import Decided, Effect, ProbeDone, RunsSeen, Trial

# The engine counts as idle only then: between two requests of one client there are often some hundred milliseconds,
# and a probe that gives way at once has still cost its first run.
IDLE_S = 2.0
# Probes take this share of idle time at most: the rest is for the board to cool and for whoever else lives on it. On
# a simulated Raspberry Pi 5 that is idle for half of the time, a fifth cost a tenth of the energy as long as anything
# was left to be tried.
PROBE_SHARE = 0.1
# Nor do they take more than this share of the time that the part itself computes, both as they age: what a better
# choice would save is a share of that. The first comparison, of the most promising challenger, may take half as long
# again as the part (and some seconds before much was computed), the others less. Without this a simulated Raspberry
# Pi 5 spent a fifth of its energy on prompts of which one came a minute.
FIRST_PROBED_SHARE, PROBED_SHARE, PROBED_ALLOWED_S = 1.5, 0.25, 5.0
# A part that was busy for less than this is not worth an experiment yet.
LEAST_BUSY_S = 1.0
# No more often it is looked for something to try under load: reports of runs come twice a second, changes of the load
# by the dozen, and mostly there is nothing.
LOOK_EVERY_S = 1.0
# So often it is looked for something to try while the engine is idle: what did not win is tried again after hours.
LOOK_AGAIN_S = 60.0
# Sizes of pieces are compared whole, and a request that comes waits for the piece under way.
LONGEST_PIECE_S = 1.0
# After a switch: what was left had a P95 so much lower under load that the switch is taken back (`duel.MOST_P95`).
MOST_P95_RISE = 1.2

Challengers = Callable[[Contest, Moment], list[Choice]]


class Laboratory:
    """`challengers` gives what may be tried in a contest. At most one experiment is open."""

    def __init__(self, rules: Rules, table: Table, pool: SessionPool, challengers: Challengers) -> None:
        self.experiment: Experiment | None = None
        self.switches = 0
        self.changed = 0
        self.budget = LossBudget(rules.loss_budget)
        self._rules = rules
        self._table = table
        self._pool = pool
        self._challengers = challengers
        self._next_probe_s = -math.inf
        self._look_s = -math.inf

    # --- what was seen ---

    def saw(self, contest: Contest, choice: Choice, runs: RunsSeen, cost_s: float, now_s: float) -> None:
        self.budget.busy_s += runs.total_s
        experiment = self.experiment
        if experiment is not None and experiment.live and _alike(experiment.contest, contest):
            self.budget.lost_s += experiment.saw(choice, runs, cost_s, now_s)

    def probed(self, done: ProbeDone, now_s: float) -> None:
        if self.experiment is not None and self.experiment.probe == done.probe:
            self.experiment.probed(done, now_s)
            computed_s = sum(map(sum, done.seconds))
            self.experiment.contest.probed.add(1.0, computed_s, now_s)
            self._next_probe_s = now_s + computed_s * (1.0 / PROBE_SHARE - 1.0)

    def engine_gone(self) -> None:
        if self.experiment is not None:
            self.experiment.probe = None

    def forget(self, contest: Contest) -> None:
        """What the open experiment compared there says nothing any more."""
        if self.experiment is not None and self.experiment.contest is contest:
            self.experiment = None

    def forget_session(self, session: SessionSpec) -> None:
        if self.experiment is not None and self.experiment.duel.challenger.session == session:
            self.experiment = None

    # --- what follows ---

    def go_on(
        self, wanted: Mapping[Part, Choice], moment: Moment, *, allowed: bool, fixed: Collection[Part]
    ) -> list[Effect]:
        """The next step. `wanted` are the choices of this moment, `fixed` parts that nothing is tried in; only where
        `allowed` something new may begin."""
        effects: list[Effect] = []
        experiment = self.experiment
        if experiment is not None and self._over(experiment, moment, effects):
            if experiment.purpose == "watch":
                experiment.contest.watched = True  # however it ended: it is not begun again
            experiment = self.experiment = None
            self._look_s = -math.inf
        may_begin = allowed and moment.calm and not moment.cold and self._rules.explore != "off"
        if experiment is None and may_begin and moment.now_s >= self._look_s:
            self._look_s = moment.now_s + LOOK_EVERY_S
            experiment = self.experiment = self._next(wanted, moment, fixed, effects)
        if experiment is None:
            return effects
        duel = experiment.duel
        sessions = [choice.session for choice in (duel.incumbent, duel.challenger) if choice.session is not None]
        keep = [*sessions, *sessions_of(wanted)]
        for session in sessions:
            if not self._pool.ready(session):
                quiet = moment.idle_s > 0 or self._rules.explore == "load"
                return [*effects, *self._pool.want(session, keep, moment.now_s, idle=quiet)]
        due = moment.idle_s >= IDLE_S and moment.now_s >= self._next_probe_s
        due = due and self._worth_probing(experiment.contest, moment.now_s)
        ours = experiment.purpose == "try" and moment.holds(experiment.contest.part, experiment.contest.key)
        if due and ours and experiment.probe is None and duel.verdict() == "open":
            experiment.probe = experiment.next_probe(moment.now_s)
            effects.append(experiment.probe)
        return effects

    def trial(self, moment: Moment) -> Trial | None:
        """The trial to be carried out under the load of this moment."""
        experiment, rules = self.experiment, self._rules
        if experiment is None or moment.idle or rules.explore != "load" or not experiment.live:
            return None
        duel, contest = experiment.duel, experiment.contest
        session = duel.challenger.session
        # Only for the very work that is compared: with other rows the challenger may be far slower.
        present = clockless(moment.key_now(contest.part)) == contest.work
        if session is None or not self._pool.ready(session) or not present:
            return None
        if duel.verdict() != "open" or (self.budget.spent and experiment.purpose == "try"):
            return None
        return experiment.trial(rules.trial_every)

    def revert(self, contest: Contest, reason: str, now_s: float) -> Effect:
        """Take the contest's last switch back."""
        bad = contest.chosen
        good = contest.revert(reason, now_s)
        for other in self._at_other_clocks(contest):
            if (other.chosen, other.previous) == (bad, good):
                other.revert(reason, now_s)
        self.switches += 1
        self.changed += 1
        self.forget(contest)
        return Decided("revert", contest.part, contest.key, bad.choice_id, good.choice_id, reason)

    def next_wake_s(self, moment: Moment) -> float | None:
        """When time alone may change something."""
        now_s, experiment = moment.now_s, self.experiment
        if self._rules.explore == "off":
            return None
        moments: list[float] = []
        if experiment is not None:
            moments += [experiment.contest.settled_s, experiment.begun_s + GIVE_UP_S]
            if moment.idle and experiment.probe is None:
                moments += [now_s - moment.idle_s + IDLE_S, self._next_probe_s]
        elif moment.idle:
            moments.append(now_s + LOOK_AGAIN_S)
        return min((at_s for at_s in moments if at_s > now_s), default=None)

    # --- inside ---

    def _over(self, experiment: Experiment, moment: Moment, effects: list[Effect]) -> bool:
        """Whether the comparison has come to an end; what follows from it is done."""
        duel, contest, now_s = experiment.duel, experiment.contest, moment.now_s
        orphan = self._table.get(contest.part, contest.key) is not contest
        if orphan or duel.incumbent != contest.chosen or not fits(duel.challenger, moment.board):
            return True
        if any(self._barred(choice, now_s) for choice in (duel.incumbent, duel.challenger)):
            return True
        if not experiment.live and not self._worth_probing(contest, now_s):
            return True  # for now: others need not wait for it
        if now_s - experiment.begun_s > GIVE_UP_S:
            contest.keep(duel.challenger, math.nan, lost=False, reason="its situation did not return", now_s=now_s)
            return True
        verdict = duel.verdict()
        if verdict == "open":
            return False
        if experiment.purpose == "watch":
            if verdict == "won" or (verdict == "even" and duel.p95_ratio < 1.0 / MOST_P95_RISE):
                why = f"under load it takes {1 / duel.ratio:.2f} times as long, its P95 {1 / duel.p95_ratio:.2f}"
                effects.append(self.revert(contest, why, now_s))
            return True
        if verdict == "won" and now_s < contest.settled_s:
            return False
        names = (contest.chosen.choice_id, duel.challenger.choice_id)
        reason = f"takes {duel.ratio:.3f} times as long, ±{duel.error:.3f}, over {duel.samples} pairs"
        begun_s = experiment.first_sample_s if experiment.first_sample_s is not None else now_s
        self.changed += 1
        told = (contest.part, contest.key, *names, reason, now_s - begun_s, duel.gain)
        if verdict == "won":
            for each in [contest, *self._at_other_clocks(contest)]:
                if each.chosen == duel.incumbent and each.may_try(duel.challenger, now_s):
                    each.switch(duel.challenger, now_s, ratio=duel.ratio, pairs=duel.samples)
                    each.watched = each is not contest
            self.switches += 1
            effects.append(Decided("switch", *told))
        else:
            for each in [contest, *self._at_other_clocks(contest)]:
                if each.chosen == duel.incumbent and each.may_try(duel.challenger, now_s):
                    each.keep(duel.challenger, duel.ratio, lost=verdict == "lost", reason=reason, now_s=now_s)
            effects.append(Decided("kept", *told))
        return True

    def _barred(self, choice: Choice, now_s: float) -> bool:
        return choice.session is not None and bool(self._pool.barred(choice.session, now_s))

    def _watchable(self, contest: Contest, now_s: float) -> bool:
        """Whether what the last switch left can be compared under load."""
        before = contest.previous
        if before is None or self._rules.explore != "load" or before.chunk != contest.chosen.chunk:
            return False
        return not self._barred(before, now_s)

    def _worth_probing(self, contest: Contest, now_s: float) -> bool:
        alike = [contest, *self._at_other_clocks(contest)]
        busy_s = sum(each.busy.weight(now_s) for each in alike)
        share = PROBED_SHARE if any(each.decided for each in alike) else FIRST_PROBED_SHARE
        return sum(each.probed.weight(now_s) for each in alike) <= PROBED_ALLOWED_S + share * busy_s

    def _hopeless(self, contest: Contest, challenger: Choice, now_s: float) -> bool:
        """Whether it has lost so clearly against the same choice, with other rows or tokens, that it cannot win
        here."""
        for near in wider(contest.key):
            other = self._table.get(contest.part, near)
            lost = other.dismissed.get(challenger) if other is not None and other.chosen == contest.chosen else None
            if lost is not None and now_s < lost.until_s and lost.ratio > HOPELESS:
                return True
        return False

    def _at_other_clocks(self, contest: Contest) -> list[Contest]:
        return [other for other in self._table if other is not contest and _alike(other, contest)]

    def _next(
        self, wanted: Mapping[Part, Choice], moment: Moment, fixed: Collection[Part], effects: list[Effect]
    ) -> Experiment | None:
        now_s, keep = moment.now_s, sessions_of(wanted)
        for contest in most_used(self._table, now_s):
            if contest.busy.weight(now_s) < LEAST_BUSY_S:
                break
            if contest.part in fixed or contest.part == "variant" or not moment.holds(contest.part, contest.key):
                continue
            if self._barred(contest.chosen, now_s):
                continue
            if not contest.watched and contest.previous is not None and fits(contest.previous, moment.board):
                if self._watchable(contest, now_s):
                    return Experiment("watch", contest, contest.previous, self._rules, now_s)
                contest.watched = True
            if now_s < contest.settled_s:
                continue
            for challenger in self._challengers(contest, moment):
                session = challenger.session
                if session is None or not fits(challenger, moment.board):
                    continue
                if not contest.may_try(challenger, now_s) or self._pool.barred(session, now_s):
                    continue
                if self._hopeless(contest, challenger, now_s):
                    continue
                sized = challenger.chunk != contest.chosen.chunk
                if sized and not (self._worth_probing(contest, now_s) and _quick(contest, challenger, now_s)):
                    continue
                if not self._pool.has_place(session, keep, now_s):
                    continue
                names = (contest.chosen.choice_id, challenger.choice_id)
                effects.append(Decided("trial", contest.part, contest.key, *names, "compared side by side"))
                return Experiment("try", contest, challenger, self._rules, now_s)
        return None


def sessions_of(choices: Mapping[Part, Choice]) -> list[SessionSpec]:
    return [choice.session for choice in choices.values() if choice.session is not None]


def _quick(contest: Contest, challenger: Choice, now_s: float) -> bool:
    """Whether a whole piece can be probed without keeping a request waiting."""
    costs = contest.costs.get(contest.chosen)
    return costs is not None and costs.cost_s(now_s) * challenger.chunk <= LONGEST_PIECE_S


def _alike(one: Contest, other: Contest) -> bool:
    """Whether they differ in the clock at most."""
    return one is other or ((one.part, one.work) == (other.part, other.work))
