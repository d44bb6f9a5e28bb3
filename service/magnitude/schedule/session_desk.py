"""The engine, for those who work on further sessions: one piece of work at a time, some when nothing else runs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from magnitude.engine.client import EngineLink
from magnitude.engine.message import Message
from magnitude.engine.protocol import CancelRequest, ToService
from magnitude.errors import EngineError
from magnitude.schedule.session_budget import SessionBudget

# So long after an engine has come up nothing is done on its sessions: what was interrupted goes on first, and further
# models are loaded (`schedule.model_switch.LATER_S`).
SETTLE_S = 2.0


class Ask(Protocol):
    """Sends a message and waits for the answer with its id."""

    def __call__(self, link: EngineLink, message: Message, request_id: int) -> Awaitable[ToService]: ...


class SessionDesk:
    """Shared by all models, since they share the engine: making two sessions at once, or timing one while another is
    made, would measure each other. `idle` says whether nothing at all is open; `budget` what memory there is."""

    def __init__(
        self,
        *,
        ask: Ask,
        next_id: Callable[[], int],
        idle: Callable[[], bool],
        budget: Callable[[], SessionBudget],
        settle_s: float = SETTLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.next_id = next_id
        self.idle = idle
        self.budget = budget
        self.clock = clock
        self.one = asyncio.Lock()
        self._ask = ask
        self._settle_s = settle_s
        self._link: EngineLink | None = None
        self._up_s = 0.0
        self._load = asyncio.Event()

    @property
    def up(self) -> bool:
        return self._link is not None

    def engine_up(self, link: EngineLink) -> None:
        self._link, self._up_s = link, self.clock()

    def engine_down(self) -> None:
        self._link = None

    def load_changed(self) -> None:
        """Something has begun, or is over."""
        self._load.set()
        self._load.clear()

    def send(self, message: Message) -> None:
        if self._link is not None:
            self._link.send(message)

    def cancel(self, request_id: int) -> None:
        """Give up what was asked; it is answered all the same."""
        self.send(CancelRequest(target=request_id))

    async def ask(self, message: Message, request_id: int) -> ToService:
        """To be cancelled when the engine is gone. Raises `EngineError` when there is none."""
        if self._link is None:
            raise EngineError("there is no engine to ask")
        return await self._ask(self._link, message, request_id)

    async def settled(self) -> None:
        """Returns when the engine has been up for a while."""
        await asyncio.sleep(max(0.0, self._up_s + self._settle_s - self.clock()))

    async def quiet(self, *, patience_s: float | None = None, given_up: Callable[[], bool] = lambda: False) -> bool:
        """Returns True when nothing is open, False when `given_up` says so or `patience_s` are over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while not self.idle():
                    if given_up():
                        return False
                    await self._load.wait()
                return True
        return False
