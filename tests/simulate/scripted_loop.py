"""A strategy loop that follows a script: what it asks for is fixed beforehand, what it is told is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.strategy import Strategy
from magnitude.policy.terms import Effect, Event

Kind = TypeVar("Kind")
Answer = Callable[[Event, float], Sequence[Effect]]


def nothing(event: Event, now_s: float) -> Sequence[Effect]:
    return ()


class ScriptedLoop:
    """Answers each event as the script says, and keeps it."""

    def __init__(self, own: SessionSpec, answer: Answer = nothing, *, chunk: int = 128) -> None:
        self.strategy = Strategy(prefill=own, decode=own, prefill_chunk=chunk)
        self.wake_s: float | None = None
        self.seen: list[tuple[float, Event]] = []
        self._answer = answer

    def apply(self, event: Event, now_s: float) -> Sequence[Effect]:
        self.seen.append((now_s, event))
        return self._answer(event, now_s)

    def told(self, kind: type[Kind]) -> list[Kind]:
        """Events of that kind, in order."""
        return [event for _, event in self.seen if isinstance(event, kind)]
