"""Whether it was for want of memory that a process was killed.

The kernel only counts such kills, of the engine's control group or of the whole board, and SIGKILL looks the same
whoever sends it. So the count of the moment when the process was last known to be alive is remembered: a kill of
weeks ago, of another process perhaps, says nothing about the one of today.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# How often the count is read: it costs some 50 microseconds, and heartbeats come twice a second.
LOOK_EVERY_S = 5.0


class OomWitness:
    """Watches for one process. `kills` counts up; None where the kernel does not count."""

    def __init__(self, kills: Callable[[], int | None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kills = kills
        self._clock = clock
        # A sign of life may be read after the death of who sent it, so the count before the last one is what counts.
        self._before = self._last = kills()
        self._looked_s = clock()

    def alive(self) -> None:
        """The process has just been heard of."""
        now_s = self._clock()
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            self._before, self._last = self._last, self._kills()

    def kernel_has_killed(self) -> bool:
        """Whether the kernel has killed for want of memory since the process was known to be alive."""
        return self._kills() != self._before
