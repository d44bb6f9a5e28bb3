"""An optimiser that asks for what a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.learned import Binding, Choice, Learned
from magnitude.policy.optimizer import StrategyView
from magnitude.policy.rules import Rules
from magnitude.policy.situation import Part, Situation
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
        self.reloaded: list[tuple[Rules, Learned]] = []
        self.pinned: dict[Part, Choice] = {}
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

    def learned(self, binding: Binding, now_s: float, wall_s: float = 0.0) -> Learned:
        return msgspec.structs.replace(self._learned, binding=binding, saved_at_s=wall_s)

    def view(self, now_s: float) -> StrategyView:
        return StrategyView(
            model="m",
            strategy=self.strategy,
            strategy_id=self.strategy.strategy_id,
            in_words=self.strategy.in_words,
            for_s=now_s,
        )

    def reload(self, rules: Rules, learned: Learned) -> None:
        self.reloaded.append((rules, learned))
        self._learned = learned

    def pin(self, choices: dict[Part, Choice]) -> None:
        self.pinned = choices
