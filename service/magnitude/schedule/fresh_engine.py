"""Asking an engine something before it serves."""

from __future__ import annotations

from typing import Protocol

from magnitude.engine.message import Message
from magnitude.engine.protocol import ToService


class FreshEngine(Protocol):
    """An engine that is being loaded."""

    def next_id(self) -> int:
        """A request id that nobody else uses."""
        ...

    async def ask(self, message: Message, request_id: int, *, whole: bool = False) -> ToService:
        """Send `message` and wait for the first answer with its id; `whole`: for the end of a generation."""
        ...
