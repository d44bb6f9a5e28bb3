"""An optimiser that asks for what a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.learned import Binding, Learned
from magnitude.policy.situation import Situation
from magnitude.policy.strategy import Strategy
from magnitude.policy.terms import Effect, Event

OWN = SessionSpec(threads=1)
TWO = SessionSpec(threads=2)
OWN_ONLY = Strategy(prefill=OWN, decode=OWN, prefill_chunk=8, max_batch=2)
TWO_FOR_PROMPTS = Strategy(prefill=TWO, decode=OWN, prefill_chunk=4, max_batch=1)
BINDING = Binding(board="bench", model="m", model_hash="0", ort_version="1")


class ScriptedChooser:
    """`answer` says what follows from an event. `seen` are those told so far, with their times."""

    def __init__(
        self, answer: Callable[[Event], Sequence[Effect]] = lambda event: (), learned: Learned | None = None
    ) -> None:
        self.seen: list[tuple[Event, float]] = []
        self.strategy = OWN_ONLY
        self.wake_s: float | None = None
        self.changed = 0
        self.asked: list[Situation] = []
        self._answer = answer
        self._learned = learned or Learned(binding=BINDING)

    @property
    def events(self) -> list[Event]:
        return [event for event, _ in self.seen]

    def apply(self, event: Event, now_s: float) -> list[Effect]:
        self.seen.append((event, now_s))
        return list(self._answer(event))

    def strategy_for(self, at: Situation) -> Strategy:
        self.asked.append(at)
        return self.strategy

    def learned(self) -> Learned:
        return self._learned
