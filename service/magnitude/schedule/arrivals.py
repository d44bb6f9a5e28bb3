"""Work that is held until its model is in memory, where it must not be begun before that."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable

from magnitude.errors import MagnitudeError, Overloaded


class Arrivals:
    """Those that wait, by model; at most `max_queue` at once. `changed` is called when one came or went."""

    def __init__(self, max_queue: int, changed: Callable[[], None]) -> None:
        self.max_queue = max_queue
        self._changed = changed
        self._held: dict[asyncio.Future[None], str] = {}

    @property
    def waiting(self) -> int:
        return len(self._held)

    def models(self) -> set[str]:
        """Models that somebody waits for."""
        return set(self._held.values())

    async def wait(self, model: str) -> None:
        """Returns when the model is there. Raises why it will not be, and `Overloaded` at once when too many wait."""
        if self.waiting >= self.max_queue:
            raise Overloaded(
                f"the queue is full: {self.waiting} requests are waiting",
                hint="Ask again later, or raise server.max_queue",
            )
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held[arrival] = model
        self._changed()
        try:
            await arrival
        finally:
            del self._held[arrival]
            self._changed()

    def there(self, model: str) -> None:
        """The model is in memory."""
        for arrival in self._of(model):
            arrival.set_result(None)

    def refuse(self, model: str, error: MagnitudeError) -> None:
        """The model does not come."""
        for arrival in self._of(model):
            # One for each: an error that was raised carries its traceback along.
            arrival.set_exception(copy.copy(error))

    def _of(self, model: str) -> list[asyncio.Future[None]]:
        return [arrival for arrival, wanted in self._held.items() if wanted == model and not arrival.done()]
