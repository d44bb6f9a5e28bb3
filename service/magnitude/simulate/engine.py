"""An engine whose sessions a strategy loop chooses, in simulated time: what the loop asks for is carried out as the
service and its engine would, and the loop is told what they would tell it.

Nothing here knows how long a run takes: whoever drives it has a board, or a formula. Pure but for its own seeded
chance.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.learned import Choice, Verified
from magnitude.policy.situation import Part
from magnitude.policy.strategy import Strategy
from magnitude.policy.terms import (
    BoardSeen,
    CheckSession,
    Decided,
    DropSession,
    Effect,
    EngineChanged,
    Event,
    LoadSeen,
    MayExperiment,
    PrepareSession,
    Probe,
    ProbeDone,
    RunsSeen,
    SessionChecked,
    SessionReady,
    TaskSeen,
    Tick,
    Trial,
    Use,
)

# The standard deviation of the logarithm of a run's time where nothing is wrong: what decode steps of an otherwise
# idle machine scatter by.
NOISE = 0.05
# A 1.5B model's weights are mapped already and packed again for a further session: some seconds on a board (0.5 s
# were measured for 135M weights on x86-64).
PREPARE_S = 5.0
# Weights that are packed a second time: as many bytes as the model has.
ADDED_BYTES = 1_000_000_000
# The golden set by the session and by the model's own, in pieces of so many tokens.
CHECK_PIECES = 8
CHECK_TOKENS = 64
# Comparisons run between other work where no rest comes in so long.
CHECK_WAIT_S = 30.0
# The engine tells of its runs twice a second, and when it comes to rest; runs of many tokens together with those of
# about as many (`engine.step_report`).
REPORT_S = 0.5
EXACT_TOKENS = 8
# The board is told at least so often while anything runs.
BOARD_EVERY_S = 10.0


class Loop(Protocol):
    """What is needed of `policy.optimizer.Optimizer`."""

    @property
    def strategy(self) -> Strategy: ...

    @property
    def wake_s(self) -> float | None: ...

    def apply(self, event: Event, now_s: float) -> Sequence[Effect]: ...


class Errand(msgspec.Struct, frozen=True):
    """A run that serves nobody: of a probe, or of a comparison with the model's own session."""

    purpose: Literal["probe", "check"]
    part: Part
    session: SessionSpec
    rows: int
    tokens: int


Scatter = Callable[[random.Random, float, SessionSpec], float]


def lognormal(chance: random.Random, now_s: float, session: SessionSpec) -> float:
    """A factor on a run's time."""
    return chance.lognormvariate(0.0, NOISE)


class SimulatedEngine:
    """One engine with one model. `own` is the session that it was loaded with; `scatter` gives a factor on the time
    of each run from chance, the moment and its session. `decided` is the timeline,
    `switches` how often another strategy than before was put in force."""

    def __init__(
        self,
        loop: Loop,
        own: SessionSpec,
        *,
        seed: int = 1,
        scatter: Scatter = lognormal,
        prepare_s: float = PREPARE_S,
        added_bytes: int = ADDED_BYTES,
    ) -> None:
        self.loop = loop
        self.own = own
        self.trial: Trial | None = None
        self.decided: list[tuple[float, Decided]] = []
        self.switches = 0
        self._strategy = loop.strategy
        self._sessions = {own}
        self._coming: dict[SessionSpec, float] = {}
        self._checks: list[_Check] = []
        self._probe: _ProbeUnderWay | None = None
        self._runs: dict[Part, int] = {}
        self._report: dict[tuple[Part, SessionSpec, int, int], tuple[int, int, float]] = {}
        self._report_since_s = 0.0
        self._chance = random.Random(seed)  # noqa: S311 - the same seed, the same course
        self._scatter = scatter
        self._prepare_s = prepare_s
        self._added_bytes = added_bytes
        self._load = LoadSeen()
        self._board: BoardSeen | None = None
        self._board_told_s = float("-inf")

    @property
    def strategy(self) -> Strategy:
        """What is in force."""
        return self._strategy

    @property
    def idle(self) -> bool:
        return self._load == LoadSeen()

    def begin(self, board: BoardSeen, now_s: float) -> None:
        """The engine is up, with the model's own session."""
        self.tell(MayExperiment(allowed=True), now_s)
        self.see_board(board, now_s)
        self.tell(EngineChanged(up=True), now_s)

    def see_board(self, board: BoardSeen, now_s: float) -> None:
        """Told on when it changed, and every ten seconds while anything runs."""
        if board != self._board or (not self.idle and now_s - self._board_told_s >= BOARD_EVERY_S):
            self._board, self._board_told_s = board, now_s
            self.tell(board, now_s)

    def see_load(self, load: LoadSeen, now_s: float) -> None:
        """Told on when it changed. Work ends a probe."""
        if load == self._load:
            return
        self._load = load
        if self.idle:
            self._tell_runs(now_s)
        self.tell(load, now_s)

    def session(self, part: Part) -> SessionSpec:
        """Which one takes the next run of the part; where it is not there, the model's own."""
        strategy = self._strategy
        spec = strategy.decode if part == "decode" else strategy.prefill
        trial = self.trial
        if trial is not None and _phase(trial.part) == _phase(part) and self._until_trial(part) == 0:
            spec = trial.session
        return spec if spec in self._sessions else self.own

    def runs_until_change(self, part: Part) -> int | None:
        """How many runs of the part the session that takes the next one will take in a row; None: no end in sight."""
        trial = self.trial
        if trial is None or _phase(trial.part) != _phase(part):
            return None
        return self._until_trial(part) or 1

    def ran(
        self, part: Part, session: SessionSpec, *, rows: int, tokens: int, runs: int, run_s: float, now_s: float
    ) -> None:
        """So many runs are over, each of `run_s` but for chance."""
        self._runs[_phase(part)] = self._runs.get(_phase(part), 0) + runs
        if not self._report:
            self._report_since_s = now_s
        about = tokens if tokens <= EXACT_TOKENS else 1 << (tokens - 1).bit_length()
        before, positions, total_s = self._report.get((part, session, rows, about), (0, 0, 0.0))
        total_s += run_s * sum(self._scatter(self._chance, now_s, session) for _ in range(runs))
        self._report[part, session, rows, about] = before + runs, positions + runs * tokens, total_s
        if now_s - self._report_since_s >= REPORT_S:
            self._tell_runs(now_s)

    def task_over(
        self, run_s: float, units: int, now_s: float, *, failed: bool = False, strategy: Strategy | None = None
    ) -> None:
        """`strategy`: the task's own, where it is not what is in force."""
        self.tell(TaskSeen((strategy or self._strategy).strategy_id, run_s, units, failed), now_s)

    def errand(self, now_s: float) -> Errand | None:
        """What the engine does next instead of resting, or between the runs of others. Work ends a probe."""
        if not self.idle:
            self._end_probe(now_s, complete=False)
        if self._checks and (self.idle or now_s >= self._checks[0].due_s):
            check = self._checks[0]
            return Errand("check", "prefill", check.sessions[check.done % 2], 1, CHECK_TOKENS)
        return self._probe.next() if self._probe is not None else None

    def errand_done(self, errand: Errand, run_s: float, now_s: float) -> None:
        """The errand's run is over, in `run_s` but for chance."""
        if errand.purpose == "check":
            check = self._checks[0]
            check.done += 1
            check.due_s = max(check.due_s, now_s + run_s)
            if check.done == 2 * CHECK_PIECES:
                self._checks.pop(0)
                self.tell(SessionChecked(Verified(session=check.sessions[0], passed=True, equal=True)), now_s)
        elif self._probe is not None:
            self._probe.seconds.append(run_s * self._scatter(self._chance, now_s, errand.session))
            if self._probe.rounds == self._probe.probe.rounds:
                self._end_probe(now_s, complete=True)

    def next_event_s(self, now_s: float) -> float:
        """Seconds until something is there, or the loop wants to be woken; endless when nothing will be."""
        times = list(self._coming.values())
        if self.loop.wake_s is not None:
            times.append(self.loop.wake_s)
        if self._checks and not self.idle:
            times.append(self._checks[0].due_s)
        return max(0.0, min(times, default=float("inf")) - now_s)

    def advance(self, now_s: float) -> None:
        """Time has come to `now_s`."""
        for session, due_s in list(self._coming.items()):
            if due_s <= now_s + 1e-9:
                del self._coming[session]
                self._sessions.add(session)
                self.tell(SessionReady(session, self._added_bytes), now_s)
        wake_s = self.loop.wake_s
        if wake_s is not None and wake_s <= now_s + 1e-9:
            self.tell(Tick(), now_s)

    def tell(self, event: Event, now_s: float) -> None:
        """Tell the loop, and carry out what it says."""
        for effect in self.loop.apply(event, now_s):
            self._carry_out(effect, now_s)

    # --- inside ---

    def _carry_out(self, effect: Effect, now_s: float) -> None:
        match effect:
            case PrepareSession(session):
                if session not in self._sessions:
                    self._coming.setdefault(session, now_s + self._prepare_s)
            case DropSession(session):
                self._coming.pop(session, None)
                if session != self.own:
                    self._sessions.discard(session)
            case CheckSession(session):
                self._checks.append(_Check((session, self.own), now_s))
            case Use(strategy, trial):
                self.switches += strategy != self._strategy
                self._strategy, self.trial = strategy, trial
            case Probe():
                self._probe = _ProbeUnderWay(effect, self.own)
            case Decided():
                self.decided.append((now_s, effect))

    def _end_probe(self, now_s: float, *, complete: bool) -> None:
        under_way, self._probe = self._probe, None
        if under_way is not None:
            self.tell(ProbeDone(under_way.probe, under_way.by_choice(), complete), now_s)

    def _until_trial(self, part: Part) -> int:
        """Runs of the strategy in force before the next one of the trial."""
        every = self.trial.every if self.trial is not None else 1
        return (every - 1) - self._runs.get(_phase(part), 0) % every

    def _tell_runs(self, now_s: float) -> None:
        report, self._report = self._report, {}
        for (part, session, rows, _), (runs, positions, total_s) in report.items():
            chunk = self._strategy.prefill_chunk if part == "prefill" else 0
            self.tell(RunsSeen(part, session, rows, round(positions / runs), runs, total_s, chunk), now_s)


def in_words(decided: Decided) -> str:
    """One line of the timeline."""
    where = f"{decided.part}, {decided.key}" if decided.part else "all"
    return f"{decided.kind} ({where}): {decided.from_id} to {decided.to_id}: {decided.reason}"


class _Check:
    """A comparison under way: runs by the session and by the model's own, in turn."""

    def __init__(self, sessions: tuple[SessionSpec, SessionSpec], since_s: float) -> None:
        self.sessions = sessions
        # Beside other work: not at once, and then for half of the time.
        self.due_s = since_s + CHECK_WAIT_S
        self.done = 0


class _ProbeUnderWay:
    """The choices' runs in turn, and what they took."""

    def __init__(self, probe: Probe, own: SessionSpec) -> None:
        self.probe = probe
        self.seconds: list[float] = []
        self._own = own

    @property
    def rounds(self) -> int:
        return len(self.seconds) // len(self.probe.choices)

    def next(self) -> Errand:
        probe = self.probe
        choice: Choice = probe.choices[len(self.seconds) % len(probe.choices)]
        tokens = 1 if probe.part == "decode" else choice.chunk or probe.tokens
        return Errand("probe", probe.part, choice.session or self._own, probe.rows, tokens)

    def by_choice(self) -> tuple[tuple[float, ...], ...]:
        """Of complete rounds only."""
        width = len(self.probe.choices)
        return tuple(tuple(self.seconds[at : self.rounds * width : width]) for at in range(width))


def _phase(part: Part) -> Part:
    """Sessions are used by phase: encoders run as prompts do."""
    return "decode" if part == "decode" else "prefill"
