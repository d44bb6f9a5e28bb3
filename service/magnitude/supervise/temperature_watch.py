"""The processor's temperature of a moment ago, without ever waiting for a sensor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# It changes within seconds under load; the status line is not told more often than every three either.
EVERY_S = 5.0
# A figure that is older is no figure: the sensor blocks.
STALE_S = 4 * EVERY_S


class TemperatureWatch:
    """Asks `read` in a thread of its own, which nobody waits for: some drivers of blocks that are switched off never
    answer."""

    def __init__(
        self,
        read: Callable[[], float | None],
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._every_s = every_s
        self._clock = clock
        self._last: tuple[float, float | None] | None = None
        self._ends = threading.Event()

    @property
    def temp_c(self) -> float | None:
        """None: there is no sensor, or it has not answered lately."""
        last = self._last
        return last[1] if last is not None and self._clock() - last[0] <= STALE_S else None

    def start(self) -> None:
        threading.Thread(target=self._run, name="temperature", daemon=True).start()

    def stop(self) -> None:
        """Returns at once; the thread ends by itself."""
        self._ends.set()

    def _run(self) -> None:
        while not self._ends.is_set():
            temp_c = self._read()
            self._last = (self._clock(), temp_c)
            self._ends.wait(self._every_s)
