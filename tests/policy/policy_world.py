"""An engine and a board for the strategy loop, in simulated time: what it asks for is done, and what runs is told."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.learned import Choice, Learned, Verified
from magnitude.policy.optimizer import Optimizer
from magnitude.policy.rules import ModelFacts, Rules
from magnitude.policy.situation import Part
from magnitude.policy.terms import (
    BoardSeen,
    CheckSession,
    Decided,
    DropSession,
    Effect,
    EngineChanged,
    Event,
    LoadSeen,
    PrepareSession,
    Probe,
    ProbeDone,
    RunsSeen,
    SessionChecked,
    SessionReady,
    Tick,
    Trial,
    Use,
)

# What a run by that session costs in seconds: part, session, rows, tokens, cores that may be used.
Cost = Callable[[Part, SessionSpec, int, int, int], float]
REPORT_S = 0.5


def two_cores(part: Part, session: SessionSpec, rows: int, tokens: int, cores: int) -> float:
    """Two threads are faster while two cores are there, one is when there is one (as measured on such a machine)."""
    if cores >= 2:
        step_s = {1: 0.0165, 2: 0.0119}.get(session.threads, 0.02)
    else:
        step_s = {1: 0.0208, 2: 0.0259}.get(session.threads, 0.04)
    return step_s * (tokens * 0.22 if part != "decode" else 1 + 0.15 * (rows - 1))


def facts(threads: int = 2, **settings: object) -> ModelFacts:
    return ModelFacts(name="small", kind="decoder", own=SessionSpec(threads=threads), max_batch=4, **settings)


class World:
    """`noise` is the spread of the logarithm of a report's time (of a probe's run: twice that)."""

    def __init__(
        self,
        optimizer: Optimizer,
        cost: Cost = two_cores,
        *,
        noise: float = 0.0,
        seed: int = 1,
        board: BoardSeen | None = None,
        passes: Callable[[SessionSpec], bool] = lambda session: True,
    ) -> None:
        self.optimizer = optimizer
        self.cost = cost
        self.now_s = 0.0
        self.board = board or BoardSeen(cores=(0, 1), usable=2)
        self.decided: list[tuple[float, Decided]] = []
        self.effects: list[Effect] = []
        self.sessions: set[SessionSpec] = set()
        self.use: Use | None = None
        self.passes = passes
        self.prepares = True
        self._noise = noise
        self._random = random.Random(seed)
        self._later: list[tuple[float, Event]] = []

    def start(self) -> None:
        self.tell(self.board)
        self.tell(EngineChanged(True))

    def tell(self, event: Event) -> None:
        for effect in self.optimizer.apply(event, self.now_s):
            self.effects.append(effect)
            match effect:
                case Decided():
                    self.decided.append((self.now_s, effect))
                case Use():
                    for session in (effect.strategy.decode, effect.strategy.prefill):
                        assert session == self.optimizer._facts.own or session in self.sessions
                    self.use = effect
                case PrepareSession(session):
                    if self.prepares:
                        self.sessions.add(session)
                        self._later.append((self.now_s + 1.0, SessionReady(session, 100_000_000)))
                case DropSession(session):
                    self.sessions.discard(session)
                case CheckSession(session):
                    verdict = Verified(session=session, passed=self.passes(session), equal=True)
                    self._later.append((self.now_s + 0.5, SessionChecked(verdict)))
                case Probe():
                    done = self._probed(effect)
                    self._later.append((self.now_s + sum(map(sum, done.seconds)), done))

    def board_becomes(self, board: BoardSeen) -> None:
        self.board = board
        self.tell(board)

    def decode(self, seconds: float, rows: int = 1) -> None:
        """Answers are written for so long."""
        self.tell(LoadSeen(decoding=rows))
        end_s = self.now_s + seconds
        while self.now_s < end_s - 1e-9:
            self._pass(REPORT_S)
            self._report("decode", rows, 1, REPORT_S)

    def prefill(self, seconds: float, tokens: int = 128) -> None:
        self.tell(LoadSeen(entering=1))
        end_s = self.now_s + seconds
        while self.now_s < end_s - 1e-9:
            self._pass(REPORT_S)
            self._report("prefill", 1, tokens, REPORT_S)

    def rest(self, seconds: float) -> None:
        self.tell(LoadSeen())
        self._pass(seconds)

    def kinds(self, *kinds: str) -> list[Decided]:
        return [one for _, one in self.decided if one.kind in kinds]

    def _pass(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while True:
            due = [at_s for at_s, _ in self._later]
            if self.optimizer.wake_s is not None:
                due.append(max(self.now_s, self.optimizer.wake_s))
            next_s = min(due, default=math.inf)
            if next_s > end_s:
                self.now_s = end_s
                return
            self.now_s = max(self.now_s, next_s)
            ready = [event for at_s, event in self._later if at_s <= self.now_s]
            self._later = [(at_s, event) for at_s, event in self._later if at_s > self.now_s]
            for event in ready:
                self.tell(event)
            if not ready:
                self.tell(Tick())

    def _report(self, part: Part, rows: int, tokens: int, seconds: float) -> None:
        assert self.use is not None
        strategy, trial = self.use.strategy, self.use.trial
        mine = strategy.decode if part == "decode" else strategy.prefill
        run_s = self.cost(part, mine, rows, tokens, self.board.usable)
        runs = max(1, round(seconds / run_s))
        tried = runs // trial.every if isinstance(trial, Trial) and trial.part == part else 0
        for session, count in ((mine, runs - tried), (trial.session if trial else mine, tried)):
            if count:
                total_s = count * self.cost(part, session, rows, tokens, self.board.usable) * self._noisy(1.0)
                self.tell(RunsSeen(part, session, rows, tokens, count, total_s, strategy.prefill_chunk))

    def _probed(self, probe: Probe) -> ProbeDone:
        def run_s(choice: Choice) -> float:
            assert choice.session is not None
            tokens = choice.chunk or probe.tokens
            return self.cost(probe.part, choice.session, probe.rows, tokens, self.board.usable) * self._noisy(2.0)

        seconds = tuple(tuple(run_s(choice) for _ in range(probe.rounds)) for choice in probe.choices)
        return ProbeDone(probe, seconds, complete=True)

    def _noisy(self, factor: float) -> float:
        return math.exp(self._random.gauss(0.0, self._noise * factor)) if self._noise else 1.0


def fresh(rules: Rules | None = None, learned: Learned | None = None, model: ModelFacts | None = None) -> Optimizer:
    return Optimizer(model or facts(), rules or Rules(cold_start_s=10.0), learned)
