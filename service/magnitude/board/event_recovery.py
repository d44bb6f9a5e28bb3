"""What to do when device events cannot be had, or stop. Pure.

Events get lost where they come faster than they are read, and a source can fail at any time. So each new connection
is followed by a look at which devices there are, which shows what came in between; and while there is no connection,
looks replace it. The connection comes first: what happens between the two is then told, not missed.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

Fault = Literal["overflow", "died", "unavailable"]

MIB = 1 << 20


class RecoveryTimes(msgspec.Struct, frozen=True, kw_only=True):
    """In seconds. The tests have shorter ones."""

    # Without events. A plug that is seen a quarter of a minute late is a nuisance at most, and what decides within
    # seconds (heat, supply) is sampled anyway. A look reads a file per device: some milliseconds for a few dozen.
    look_s: float = 15.0
    # With events: in case that one was lost and nobody noticed.
    look_anyway_s: float = 300.0
    # The second failure in a row waits for so long, each further one for twice as long; the first one for nothing.
    retry_s: float = 0.5
    # Where udev is not there, it may come (early in the boot), and it costs a look at a folder to see.
    retry_most_s: float = 60.0
    # What has worked for so long has recovered.
    healthy_s: float = 60.0


class Open(msgspec.Struct, frozen=True):
    """Connect, with a receive buffer of at least so much if it can be had."""

    buffer_bytes: int


class Close(msgspec.Struct, frozen=True):
    """Let the connection go."""


class Look(msgspec.Struct, frozen=True):
    """List the devices, and report what differs from what is known."""


Effect = Open | Close | Look

# An event is 1 to 2 kB, accounted by the kernel as 2 to 4. libudev asks for 128 MB itself, of which a process without
# privileges gets net.core.rmem_max (208 kB on most kernels: a hundred events). Where that has been raised, this is
# tried: 300 events at first, 5,000 after four overflows.
FIRST_BUFFER_BYTES = 1 * MIB
MOST_BUFFER_BYTES = 16 * MIB


class Recovery:
    """Tell it what became of its effects; ask what is due, and for how long nothing will be.

    `now_s` is monotonic everywhere; a time before the last one counts as the last one.
    """

    def __init__(self, times: RecoveryTimes | None = None) -> None:
        self.times = times or RecoveryTimes()
        self.listening = False
        self.buffer_bytes = FIRST_BUFFER_BYTES
        self._failures = 0
        self._now_s = -math.inf
        self._opened_s = -math.inf
        self._open_at_s = -math.inf
        self._look_at_s = -math.inf

    def due(self, now_s: float) -> list[Effect]:
        now_s = self._time(now_s)
        if not self.listening and now_s >= self._open_at_s:
            return [Open(self.buffer_bytes)]
        return [Look()] if now_s >= self._look_at_s else []

    def wait_s(self, now_s: float) -> float:
        """Until something will be due."""
        now_s = self._time(now_s)
        next_s = self._look_at_s if self.listening else min(self._look_at_s, self._open_at_s)
        return max(0.0, next_s - now_s)

    def opened(self, now_s: float) -> None:
        self._opened_s = self._look_at_s = self._time(now_s)
        self.listening = True

    def looked(self, now_s: float, *, seen: bool = True) -> None:
        """Whether the devices could be `seen`: if not, another look follows as if there were no events."""
        times = self.times
        self._look_at_s = self._time(now_s) + (times.look_anyway_s if self.listening and seen else times.look_s)

    def failed(self, fault: Fault, now_s: float) -> list[Effect]:
        """Opening failed, or what was open has ended."""
        now_s = self._time(now_s)
        effects: list[Effect] = [Close()] if self.listening else []
        if self.listening and now_s - self._opened_s >= self.times.healthy_s:
            self._failures = 0
        self.listening = False
        self._failures += 1
        if fault == "overflow":
            self.buffer_bytes = min(2 * self.buffer_bytes, MOST_BUFFER_BYTES)
        self._open_at_s = now_s + self._pause_s(fault)
        self._look_at_s = min(self._look_at_s, now_s + self.times.look_s)
        return effects

    def _pause_s(self, fault: Fault) -> float:
        times = self.times
        if fault == "unavailable":
            return times.retry_most_s
        if self._failures == 1:
            return 0.0
        # The exponent is bounded: a float has room for a thousand failures, a board for more.
        return min(times.retry_s * 2.0 ** min(self._failures - 2, 30), times.retry_most_s)

    def _time(self, now_s: float) -> float:
        self._now_s = max(self._now_s, now_s)
        return self._now_s
