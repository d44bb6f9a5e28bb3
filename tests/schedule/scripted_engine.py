"""An engine's end of the link that answers at once, as a script says."""

from __future__ import annotations

from collections.abc import Callable

from magnitude.engine.message import Message
from magnitude.engine.protocol import ToService

Answer = Callable[[Message], ToService | None]


class ScriptedEngine:
    """Stands where `EngineLink` does: what is sent is answered by `answer`, through `deliver`. None: no answer."""

    def __init__(self, answer: Answer) -> None:
        self.sent: list[Message] = []
        self.deliver: Callable[[ToService], object] = lambda message: None
        self._answer = answer
        self._ids = 0

    def send(self, message: Message, fd: int | None = None) -> None:
        self.sent.append(message)
        if (answer := self._answer(message)) is not None:
            self.deliver(answer)

    # --- as the golden gate sees a fresh engine ---

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    async def ask(self, message: Message, request_id: int, *, whole: bool = False) -> ToService:
        self.sent.append(message)
        answer = self._answer(message)
        assert answer is not None, f"no answer to {message}"
        return answer
