"""One model's strategy loop: what is seen goes in, what is decided is carried out.

The decisions are made by a pure optimiser (`Chooser`); here is the rim around it. It is told only when something has
changed, wakes up only when it asked for it, and counts what it costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.learned import Binding, Choice, Learned
from magnitude.policy.optimizer import StrategyView
from magnitude.policy.rules import Rules
from magnitude.policy.situation import Part, Situation
from magnitude.policy.strategy import Strategy
from magnitude.policy.terms import (
    CheckSession,
    Decided,
    DecisionKind,
    DropSession,
    Effect,
    Event,
    PrepareSession,
    Probe,
    RunsSeen,
    TaskSeen,
    Tick,
    Trial,
    Use,
)
from magnitude.schedule.strategy_report import DecisionMade, LoopCounts

log = logging.getLogger("magnitude.policy")

# What is shown of decisions: an hour of a loop that is allowed to switch every minute, at its worst.
SHOWN_DECISIONS = 64
# No wake-up follows another one faster, whatever is asked for: the loop may cost half a percent of a core.
LEAST_WAKE_S = 0.2
# Decisions that are worth a line where people look; the others are in the table of decisions.
_LOUD: frozenset[DecisionKind] = frozenset(
    {
        "start",
        "situation",
        "switch",
        "revert",
        "rejected",
        "retired",
        "pinned",
        "unpinned",
        "reset",
        "imported",
    }
)


class Chooser(Protocol):
    """What decides (`policy.optimizer.Optimizer`). Pure: it knows no clock but what it is told."""

    def apply(self, event: Event, now_s: float) -> list[Effect]: ...

    @property
    def strategy(self) -> Strategy: ...

    def strategy_for(self, at: Situation) -> Strategy: ...

    @property
    def wake_s(self) -> float | None: ...

    def learned(self, binding: Binding, now_s: float, wall_s: float = 0.0) -> Learned: ...

    @property
    def changed(self) -> int: ...

    def view(self, now_s: float) -> StrategyView: ...

    def reload(self, rules: Rules, learned: Learned) -> None: ...

    def pin(self, choices: dict[Part, Choice]) -> None: ...


class Hands(Protocol):
    """What carries out (`schedule.model_sessions.ModelSessions`)."""

    def prepare(self, session: SessionSpec) -> None: ...

    def drop(self, session: SessionSpec) -> None: ...

    def check(self, session: SessionSpec) -> None: ...

    def probe(self, probe: Probe) -> None: ...

    def use(self, strategy: Strategy, trial: Trial | None) -> None: ...


class StrategyLoop:
    """`hands` carry out, `in_force` is told the strategy whenever another one is; `note` keeps each decision.
    `experimenting` is called when an experiment has begun or ended. `cpu_clock` is the time that this thread has
    computed."""

    def __init__(
        self,
        model: str,
        chooser: Chooser,
        *,
        in_force: Callable[[Strategy], None] = lambda strategy: None,
        note: Callable[[str, Decided], None] = lambda model, decided: None,
        experimenting: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.model = model
        self.chooser = chooser
        self.hands: Hands | None = None
        self.fault = ""
        self.trial: Trial | None = None
        self._timing = False
        self._as_loaded: Strategy | None = None
        self._put_off: Probe | None = None
        self._in_force = in_force
        self._note = note
        self._experimenting = experimenting
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._since_s = clock()
        self._used: Strategy | None = None
        self._events: deque[Event] = deque()
        self._telling = False
        self._timer: asyncio.TimerHandle | None = None
        self._woken_s = float("-inf")
        self._decisions: deque[tuple[float, Decided]] = deque(maxlen=SHOWN_DECISIONS)
        self._counts: dict[str, Counter[str]] = {}
        self._unkept: list[Decided] = []
        self._trials: Counter[str] = Counter()
        self._probes: Counter[str] = Counter()
        self._delays: Counter[str] = Counter()
        self._delay_s: dict[str, float] = {}
        self._cpu_s = 0.0
        self._seen = 0

    # --- for those who look on ---

    @property
    def strategy(self) -> Strategy:
        """In force: as last asked for, else as the loop begins; while it is held, as the model was loaded."""
        return self._as_loaded or self._used or self.chooser.strategy

    @property
    def since_s(self) -> float:
        """For how long."""
        return max(0.0, self._clock() - self._since_s)

    @property
    def experiments(self) -> bool:
        """A probe that waits for others measures nothing, and is not in their way."""
        return self.trial is not None or self._timing

    def counts(self) -> LoopCounts:
        return LoopCounts(
            decisions={kind: dict(parts) for kind, parts in self._counts.items()},
            trials=dict(self._trials),
            probes=dict(self._probes),
            delay_s=dict(self._delay_s),
            delays=dict(self._delays),
            cpu_s=self._cpu_s,
            events=self._seen,
        )

    def last(self) -> list[DecisionMade]:
        """The newest first."""
        now_s = self._clock()
        return [
            DecisionMade(
                kind=one.kind,
                part=one.part,
                key=one.key,
                from_id=one.from_id,
                to_id=one.to_id,
                reason=one.reason,
                ago_s=round(max(0.0, now_s - at_s), 1),
                gain=round(one.gain, 4),
                delay_s=round(one.delay_s, 3),
            )
            for at_s, one in reversed(self._decisions)
        ]

    @property
    def view(self) -> StrategyView:
        """As the one who decides shows itself."""
        return self.chooser.view(self._clock())

    def strategy_for(self, at: Situation) -> Strategy:
        """For one request. Raises nothing: a loop that has failed has no opinion of its own."""
        if self.fault or self._as_loaded is not None:
            return self.strategy
        before = self.experiments
        try:
            return self.chooser.strategy_for(at)
        except Exception as error:
            self._failed(error)
            self._tell_experimenting(before)
            return self.strategy

    # --- what it is told ---

    def tell(self, event: Event) -> None:
        """Let it decide and carry it out. What is told meanwhile comes next. Raises nothing."""
        if self._as_loaded is not None and isinstance(event, RunsSeen | TaskSeen):
            return
        self._events.append(event)
        if self._telling:
            return
        self._telling = True
        began_s, before = self._cpu_clock(), self.experiments
        try:
            while self._events and not self.fault:
                event = self._events.popleft()
                self._seen += 1
                for effect in self.chooser.apply(event, self._clock()):
                    self._carry_out(effect)
            self._set_timer()
        except Exception as error:
            self._failed(error)
        finally:
            self._events.clear()
            self._telling = False
            self._keep_decisions()
            self._cpu_s += self._cpu_clock() - began_s
        self._tell_experimenting(before)

    def timing(self, now: bool) -> None:
        """Whether the runs of a probe are `now` under way."""
        before = self.experiments
        self._timing = now and not self.fault
        self._tell_experimenting(before)

    def engine_gone(self) -> None:
        """What was under way in it will not be answered."""
        self.trial = self._put_off = None
        self._timing = False

    def hold(self, as_loaded: Strategy | None) -> None:
        """Run by this strategy and learn nothing, until told None: then go on as before."""
        if self._as_loaded == as_loaded or self.hands is None:
            return
        self._as_loaded = as_loaded
        self._since_s = self._clock()
        self._in_force(self.strategy)
        if as_loaded is not None:
            self.hands.use(as_loaded, None)
            return
        self.hands.use(self.strategy, self.trial)
        if (probe := self._put_off) is not None:
            self._put_off = None
            self.hands.probe(probe)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- inside ---

    def _tell_experimenting(self, before: bool) -> None:
        if self.experiments != before:
            self._experimenting()

    def _carry_out(self, effect: Effect) -> None:
        hands = self.hands
        assert hands is not None, "whoever made the loop has given it hands"
        match effect:
            case Use(strategy, trial):
                self._use(hands, strategy, trial)
            case PrepareSession(session):
                hands.prepare(session)
            case DropSession(session):
                hands.drop(session)
            case CheckSession(session):
                hands.check(session)
            case Probe():
                self._probes[effect.part] += 1
                if self._as_loaded is None:
                    hands.probe(effect)
                else:
                    self._put_off = effect
            case Decided():
                self.say(effect)

    def _use(self, hands: Hands, strategy: Strategy, trial: Trial | None) -> None:
        if trial is not None and trial != self.trial:
            self._trials[trial.part] += 1
        self.trial = trial
        changed, self._used = strategy != self._used, strategy
        if self._as_loaded is not None:
            return  # it is put in force when the loop goes on
        if changed:
            self._since_s = self._clock()
            self._in_force(strategy)
        hands.use(strategy, trial)

    def say(self, decided: Decided) -> None:
        """Log, keep and count a decision."""
        self._decisions.append((self._clock(), decided))
        self._counts.setdefault(decided.kind, Counter())[decided.part] += 1
        if decided.kind in ("switch", "kept"):  # the others are not decided by samples
            self._delays[decided.part] += 1
            self._delay_s[decided.part] = self._delay_s.get(decided.part, 0.0) + decided.delay_s
        fields = {
            "model": self.model,
            "part": decided.part,
            "at": decided.key,
            "from": decided.from_id,
            "to": decided.to_id,
            "gain": round(decided.gain, 3),
            "reason": decided.reason,
        }
        level = logging.INFO if decided.kind in _LOUD else logging.DEBUG
        log.log(level, "strategy: %s", decided.kind, extra={"fields": fields})
        self._unkept.append(decided)
        if not self._telling:
            self._keep_decisions()

    def _keep_decisions(self) -> None:
        """Once all that came with them is carried out: they are kept with what is in force after them."""
        unkept, self._unkept = self._unkept, []
        for decided in unkept:
            try:
                self._note(self.model, decided)
            except Exception:
                log.exception("a decision could not be kept")

    def _failed(self, error: Exception) -> None:
        """The service goes on with what is in force, without a trial, until another engine runs all as loaded."""
        self.fault = f"{type(error).__name__}: {error}"
        self.trial = None
        self._timing = False
        log.error("the strategy loop of %s failed and is given up", self.model, exc_info=error)
        self.close()
        with contextlib.suppress(Exception):  # it is told already, and there is nothing else to fall back to
            if self.hands is not None:
                self.hands.use(self.strategy, None)

    def _set_timer(self) -> None:
        self.close()
        wake_s = self.chooser.wake_s
        if wake_s is None or self.fault:
            return
        delay_s = max(wake_s - self._clock(), self._woken_s + LEAST_WAKE_S - self._clock(), 0.0)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._woken_s = self._clock()
        self.tell(Tick())
