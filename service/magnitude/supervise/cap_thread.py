"""Clock limits, written by a thread of their own: a driver that does not answer must not hold up anything else."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from magnitude.board.clock_caps import CapOutcome, ClockCaps

log = logging.getLogger("magnitude.board")


class CapThread:
    """`make` builds the `ClockCaps`, in the thread, which puts back what an earlier run has left; `told` is called
    from it with the outcome of each attempt. No other method waits, but for `stop`."""

    def __init__(
        self,
        make: Callable[[], ClockCaps],
        told: Callable[[CapOutcome], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._told = told
        self._clock = clock
        self._changed = threading.Condition()
        self._wanted: dict[str, int | None] | None = None
        self._kept: dict[str, int | None] = {}  # asked for in attempts that failed
        self._renews = False
        self._ends = False
        self._busy_since_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="clock-caps", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def set(self, caps_khz: Mapping[str, int | None]) -> None:
        """Limit policies; what was asked before and not begun yet is added to."""
        with self._changed:
            self._wanted = {**(self._wanted or {}), **caps_khz}
            self._changed.notify()

    def renew(self) -> None:
        """Ask again for what was refused, and for what the kernel has undone."""
        with self._changed:
            self._renews = True
            self._changed.notify()

    def busy_s(self) -> float:
        """How long the attempt that is under way has taken; 0: none is."""
        since_s = self._busy_since_s
        return 0.0 if since_s is None else max(0.0, self._clock() - since_s)

    def stop(self, patience_s: float) -> bool:
        """Put every limit back; what is asked after that counts for nothing. False when a driver has not answered by
        then: whoever cleans up after the process has to do it."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        if self._thread.ident is None:
            return True
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        caps: ClockCaps | None = None
        ends = False
        wanted: dict[str, int | None] | None = {}
        while True:
            self._busy_since_s = self._clock()
            try:
                caps = caps or self._make()
                outcome = caps.restore() if ends else caps.set(wanted) if wanted is not None else caps.renew()
                self._told(outcome)
            except Exception:
                log.exception("clock limits could not be written")
                self._keep(wanted)
            self._busy_since_s = None
            if ends:
                return
            ends, wanted = self._next()

    def _keep(self, wanted: dict[str, int | None] | None) -> None:
        """For the next attempt, whatever that is for."""
        with self._changed:
            self._kept = {**self._kept, **(wanted or {})}

    def _next(self) -> tuple[bool, dict[str, int | None] | None]:
        """Waits. Whether to end, and the limits to set (None: those of before)."""
        with self._changed:
            self._changed.wait_for(lambda: self._ends or self._renews or self._wanted is not None)
            wanted, self._wanted, self._renews = self._wanted, None, False
            if self._kept:
                wanted, self._kept = {**self._kept, **(wanted or {})}, {}
            return self._ends, wanted
