"""The one open comparison of a model: which it is, how it goes on, and what it may cost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from msgspec.structs import replace

from magnitude.policy.contest import Contest
from magnitude.policy.duel import Duel
from magnitude.policy.learned import Choice
from magnitude.policy.moment import ENCODED_TOKENS
from magnitude.policy.rules import Rules
from magnitude.policy.situation import fields_of
from magnitude.policy.terms import Probe, ProbeDone, RunsSeen, Trial

# "try": a challenger against what is chosen. "watch": after a switch, what was left against what is chosen, under
# load: what won while the engine was idle may do worse beside real work.
Purpose = Literal["try", "watch"]

# Rounds of one probe. A probe should be over before a request comes: ten decode steps by two sessions take 0.3 s with
# the embedded model, five pieces of a prompt 3.5 s.
DECODE_ROUNDS, PIECE_ROUNDS = 10, 5
# A request that comes waits for the run that is being probed: a piece is made smaller until it takes no longer than
# this, or has as few tokens as a piece beside answers.
PROBE_RUN_S, LEAST_PIECE = 0.5, 32
# A report holds so few runs where each takes long (a piece of a prompt on a small board) or where they come one at a
# time (the prompt of each request). Then both sides take turns, since every pair costs a run of either side anyway,
# and by one of eight runs a comparison would take hours.
FEW_RUNS = 2
# Times of both sides from reports further apart than this are not of the same moment: two reports' distance. Where
# runs are few the other side's last one is longer ago, and a neighbour that comes in between meets one side as often
# as the other; ten seconds are assumed to be enough for a client that asks again once it has its answer. Of runs that
# take seconds so many runs' time.
PAIR_S, FEW_PAIR_S, PAIR_RUNS = 1.2, 10.0, 10.0
# A comparison that has not come to an end by then (its situation does not come back) makes room for others.
GIVE_UP_S = 1800.0
# What trials may have cost before anything has been computed that they could be a share of.
LOSS_ALLOWED_S = 0.5


class _Reported(NamedTuple):
    """Runs of one side, what they cost a unit of work, and when that was told."""

    runs: RunsSeen
    cost_s: float
    at_s: float

    @property
    def pairs_for_s(self) -> float:
        few = self.runs.runs <= FEW_RUNS
        return max(FEW_PAIR_S if few else PAIR_S, PAIR_RUNS * self.runs.total_s / self.runs.runs)


class Experiment:
    """A duel with what it takes to carry it out."""

    def __init__(self, purpose: Purpose, contest: Contest, challenger: Choice, rules: Rules, now_s: float) -> None:
        self.purpose: Purpose = purpose
        self.contest = contest
        self.begun_s = now_s
        self.first_sample_s: float | None = None
        self.probe: Probe | None = None  # under way
        self.duel = Duel(contest.chosen, challenger, window=rules.window, least_gain=rules.least_gain)
        self._seen: dict[Choice, _Reported] = {}  # the last report of each

    @property
    def live(self) -> bool:
        """Whether it can be compared under load: only sessions differ then, a piece is the request's."""
        return self.duel.incumbent.chunk == self.duel.challenger.chunk

    @property
    def in_words(self) -> str:
        duel = self.duel
        return (
            f"{self.contest.part} at {self.contest.key}: {duel.challenger.choice_id} against "
            f"{duel.incumbent.choice_id}, {duel.samples} pairs so far"
        )

    def next_probe(self, now_s: float) -> Probe:
        duel, contest = self.duel, self.contest
        choices = (duel.incumbent, duel.challenger)
        costs = contest.costs.get(duel.incumbent)
        if self.live and duel.incumbent.chunk and costs is not None:
            fitting = int(PROBE_RUN_S / cost_s) if (cost_s := costs.cost_s(now_s)) > 0 else LEAST_PIECE
            chunk = min(duel.incumbent.chunk, max(LEAST_PIECE, fitting))
            choices = (replace(duel.incumbent, chunk=chunk), replace(duel.challenger, chunk=chunk))
        fields = fields_of(contest.key)
        return Probe(
            part=contest.part,
            key=contest.key,
            choices=choices,
            rows=int(float(fields.get("rows", "1"))),
            tokens=choices[0].chunk if contest.part == "prefill" else ENCODED_TOKENS,
            rounds=DECODE_ROUNDS if contest.part == "decode" else PIECE_ROUNDS,
        )

    def trial(self, every: int, now_s: float) -> Trial | None:
        """One of `every` runs for the challenger; None while nothing would be learned from it: the incumbent has not
        run for so long that no pair would come of it."""
        session, seen = self.duel.challenger.session, self._seen.get(self.duel.incumbent)
        if session is None or seen is None or now_s - seen.at_s > seen.pairs_for_s:
            return None
        return Trial(self.contest.part, session, 2 if seen.runs.runs <= FEW_RUNS else every)

    def probed(self, done: ProbeDone, now_s: float) -> None:
        self.probe = None
        units = [choice.chunk or 1 for choice in done.probe.choices]
        for times in zip(*done.seconds, strict=False):
            self._pair(times[0] / units[0], times[1] / units[1], now_s)

    def saw(self, choice: Choice, runs: RunsSeen, cost_s: float, now_s: float) -> float:
        """A report of runs in the contest's situation; the seconds that the challenger's cost more than the
        incumbent's would have."""
        duel = self.duel
        if choice not in (duel.incumbent, duel.challenger):
            return 0.0
        self._seen[choice] = _Reported(runs, cost_s, now_s)
        incumbent, challenger = self._seen.get(duel.incumbent), self._seen.get(duel.challenger)
        if incumbent is None or challenger is None:
            return 0.0
        if abs(incumbent.at_s - challenger.at_s) > max(incumbent.pairs_for_s, challenger.pairs_for_s):
            return 0.0
        lost_s = challenger.runs.total_s * max(0.0, 1.0 - incumbent.cost_s / challenger.cost_s)
        self._pair(incumbent.cost_s, challenger.cost_s, now_s)
        # Each report counts once: the rarer side sets the number of pairs.
        del self._seen[duel.challenger]
        return lost_s

    def _pair(self, incumbent_s: float, challenger_s: float, now_s: float) -> None:
        if self.first_sample_s is None:
            self.first_sample_s = now_s
        self.duel.add(incumbent_s, challenger_s)


class LossBudget:
    """What trials cost, against a share of all that is computed."""

    def __init__(self, share: float) -> None:
        self._share = share
        self.busy_s = 0.0
        self.lost_s = 0.0

    @property
    def spent(self) -> bool:
        return self.lost_s > self._share * self.busy_s + LOSS_ALLOWED_S


def most_used(contests: Iterable[Contest], now_s: float) -> list[Contest]:
    """Those that the most time goes into first."""
    return sorted(contests, key=lambda contest: (-contest.busy.weight(now_s), contest.part, contest.key))
