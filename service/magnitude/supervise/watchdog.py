"""Whether the service may tell systemd that it is well.

A ping must mean that work gets done. So it is refused when the event loop turns no more as it should, and when an
engine that holds work has shown no change for longer than supervision allows: supervision would have replaced it by
then, so that supervision itself is what does not work any more. An engine that hangs is no reason by itself: it is
killed and replaced within its deadline, and that counts as a change.

Pure. The caller looks once a tick, from the very loop that does the work.
"""

from __future__ import annotations

import msgspec

# Pings a period of the watchdog: sd_watchdog_enabled(3) recommends two; with three, one may be lost or late.
PINGS_A_PERIOD = 3
# How often the loop is looked at. One look costs microseconds, and the engine beats twice a second.
TICK_S = 1.0
# A tick that comes so late says that the loop stood still: well above what a loaded board delays a timer, well below
# any watchdog that makes sense.
LATE_S = 5.0
# Beyond the deadline itself: supervision waits 10 s for a killed engine to be gone (`lifecycle.REAP_PATIENCE_S`), on
# top of its own tick and ours, and a loaded board delays all three.
GRACE_S = 20.0


class EngineView(msgspec.Struct, frozen=True):
    """What the service sees of an engine at one moment.

    `steps` counts its graph runs; `work`: it holds requests. `patience_s`: longest time without a change that
    supervision allows now, None when it waits for nothing. `load_until_s`: when the load of a model that is under way
    must be over.
    """

    pid: int | None
    phase: str
    steps: int
    work: bool
    patience_s: float | None
    load_until_s: float | None = None


class Verdict(msgspec.Struct, frozen=True):
    """`reason` says why there is no ping; it is empty when there is one."""

    ping: bool
    reason: str = ""


class ProgressWatch:
    """Looks at one engine and at its own ticks; `may_ping` judges what was seen up to `now_s` (monotonic).
    `grace_s` is what supervision may take beyond its deadlines."""

    def __init__(self, now_s: float, *, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._view: EngineView | None = None
        self._changed_s = now_s
        self._ticked_s = now_s
        self._late_s = 0.0

    def tick(self, view: EngineView, now_s: float) -> None:
        """The loop has come round to look."""
        self._late_s = now_s - self._ticked_s - TICK_S
        self._ticked_s = now_s
        before, self._view = self._view, view
        # While this process did not run, the engine may have been frozen, too, and what it sent was not read.
        if self._late_s > LATE_S or before is None or _moved(before, view):
            self._changed_s = now_s

    def may_ping(self, now_s: float) -> Verdict:
        """Whether all is well."""
        late_s = max(self._late_s, now_s - self._ticked_s - TICK_S)
        if late_s > LATE_S:
            return Verdict(False, f"the event loop stood still for {late_s:.0f} s")
        view = self._view
        if view is None or view.patience_s is None:
            return Verdict(True)
        unchanged_s = now_s - self._changed_s
        due_s = max(self._changed_s + view.patience_s, view.load_until_s or 0.0)
        if now_s > due_s + self._grace_s:
            return Verdict(
                False, f"the engine is {view.phase} without a change for {unchanged_s:.0f} s, and nobody replaces it"
            )
        return Verdict(True)


def _moved(before: EngineView, view: EngineView) -> bool:
    """Whether something happened, or nothing has to. Only an engine that serves may be idle."""
    if view.phase == "up" and not view.work:
        return True
    return (before.pid, before.phase, before.steps) != (view.pid, view.phase, view.steps)
