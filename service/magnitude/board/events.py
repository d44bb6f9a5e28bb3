"""Devices that come, go and change, told as they do.

pyudev's own observer thread ends for good at the first overflow of its socket and at the first error of its callback,
and its `Monitor.poll` raises without end once the socket holds an error, since it never takes the error off. So the
loop is our own: it looks at the socket's error itself, and builds a new connection after any fault.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterable

import msgspec

from magnitude.board.device_event import Device, DeviceEvent, by_path, differences, learned
from magnitude.board.event_recovery import Close, Effect, Fault, Look, Open, Recovery, RecoveryTimes
from magnitude.board.event_source import Feed, Source, UdevSource, Unavailable

log = logging.getLogger("magnitude.devices")

__all__ = ["DeviceEvent", "DeviceEvents", "EventsState"]

# A thread shows at least so often that it lives, and is given up after the second: a fault is noticed within 5 s.
BEAT_S = 2.0
STUCK_S = 5.0
# After so many events at a time the thread looks whether it is to end: a source that never falls silent must not hold
# it for ever.
AT_A_TIME = 64

_NOT_OPEN = "not open yet"


class EventsState(msgspec.Struct, frozen=True, kw_only=True):
    """`listening`: events are told; without it devices are looked for every quarter of a minute, and `reason` says
    why. The figures count since the start: `events` handed on, `found` of them by looking, `overflows` and `faults`
    of the source, `callback_errors`, and `threads` that had to be replaced."""

    listening: bool = False
    reason: str = ""
    events: int = 0
    found: int = 0
    overflows: int = 0
    faults: int = 0
    callback_errors: int = 0
    threads: int = 0


class DeviceEvents:
    """Calls `on_event` for each event, from a thread of its own: it must not take long, and may fail.

    `source` makes what the thread listens to; each new thread gets a new one, because libudev's objects belong to one
    thread. The devices that are there at first are not reported.
    """

    def __init__(
        self,
        source: Callable[[], Source] = UdevSource,
        on_event: Callable[[DeviceEvent], None] = lambda _: None,
        *,
        clock: Callable[[], float] = time.monotonic,
        times: RecoveryTimes | None = None,
        stuck_s: float = STUCK_S,
    ) -> None:
        self._source = source
        self._on_event = on_event
        self._clock = clock
        self._times = times or RecoveryTimes()
        self._stuck_s = stuck_s
        self._started = False
        self._listener: _Listener | None = None
        self._given_up: threading.Thread | None = None
        self._count = _Count()

    def start(self) -> None:
        """Returns at once. Where no thread can be had now, `ensure_alive` gets one later."""
        self._started = True
        self._listen(None, None)

    def stop(self) -> None:
        """Returns at once; the thread ends by itself."""
        self._started = False
        if self._listener is not None:
            self._listener.end()
            self._listener = None

    def ensure_alive(self) -> None:
        """Replace a thread that has ended or hangs. Call it every second or so; it never waits.

        Of threads that hang (a driver that never answers, a callback that never returns) one at a time is left
        behind: a second one would hang at the same place. One that hangs while it looks at the devices is followed by
        one that only listens.
        """
        if not self._started:
            return
        old = self._listener
        if old is None:
            self._listen(None, None)
            return
        ended = not old.is_alive()
        if not ended and self._clock() - old.beat_s <= self._stuck_s:
            return
        if self._given_up is not None and self._given_up.is_alive():
            return
        old.end()
        log.warning("device events: the thread %s; a new one is started", "ended" if ended else "hangs")
        if self._listen(old.known, old if old.looking and not ended else old.hung):
            self._given_up = None if ended else old
            self._count.threads += 1

    def _listen(self, known: dict[str, Device] | None, hung: threading.Thread | None) -> bool:
        try:
            listener = _Listener(
                self._source, self._on_event, self._clock, self._times, self._count, known=known, hung=hung
            )
            listener.start()
        except (OSError, RuntimeError) as error:  # no descriptors or no threads left
            log.warning("device events: no thread can be started", extra={"fields": {"reason": str(error)}})
            return False
        self._listener = listener
        return True

    @property
    def state(self) -> EventsState:
        listener, count = self._listener, self._count
        return EventsState(
            listening=listener is not None and listener.listening,
            reason=listener.reason if listener is not None else "not started",
            events=count.events,
            found=count.found,
            overflows=count.overflows,
            faults=count.faults,
            callback_errors=count.callback_errors,
            threads=count.threads,
        )


class _Count:
    """Written by one listener at a time; reading one figure needs no lock."""

    def __init__(self) -> None:
        self.events = self.found = self.overflows = self.faults = self.callback_errors = self.threads = 0


class _Listener(threading.Thread):
    """One thread with its source. `known` are the devices as last reported, None before the first look. `hung` is
    another thread, which hangs in a look: as long as it does, this one does not look."""

    _wake_r = _wake_w = -1

    def __init__(
        self,
        source: Callable[[], Source],
        on_event: Callable[[DeviceEvent], None],
        clock: Callable[[], float],
        times: RecoveryTimes,
        count: _Count,
        *,
        known: dict[str, Device] | None,
        hung: threading.Thread | None,
    ) -> None:
        super().__init__(name="device-events", daemon=True)
        self.known = known
        self.looking = False
        self.reason = _NOT_OPEN
        self.beat_s = clock()
        self._make = source
        self._on_event = on_event
        self._clock = clock
        self._recovery = Recovery(times)
        self.hung = hung
        self._count = count
        self._feed: Feed | None = None
        self._ends = False
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def listening(self) -> bool:
        return self._recovery.listening

    def end(self) -> None:
        self._ends = True
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b".")

    def run(self) -> None:
        try:
            source: Source | None = None
            while not self._ends:
                self.beat_s = self._clock()
                try:
                    source = source or self._make()
                    self._turn(source)
                except Exception as error:  # whatever libudev, a driver or we ourselves do wrong: events must go on
                    self._failed("died", f"{type(error).__name__}: {error}")
                    # What fails before anything was waited for must not fail again at once.
                    self._wait(min(1.0, self._recovery.times.retry_s), None)
        finally:
            self._close()

    def __del__(self) -> None:  # not at the end of the thread: `end` may be called at any time
        for end in (self._wake_r, self._wake_w):
            with contextlib.suppress(OSError):
                os.close(end)

    def _turn(self, source: Source) -> None:
        # All that is due before anything is received: what is told counts from the first look on.
        while (effects := self._recovery.due(self._clock())) and not self._ends:
            for effect in effects:
                self._do(effect, source)
        masks = self._wait(self._recovery.wait_s(self._clock()), self._feed)
        if self._feed is None or not masks:
            return
        if masks & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
            pending = self._feed.fault() if not masks & select.POLLNVAL else errno.EBADF
            self._lost(OSError(pending, os.strerror(pending)) if pending else OSError("the connection hung up"))
        else:
            self._receive(self._feed)

    def _do(self, effect: Effect, source: Source) -> None:
        match effect:
            case Open(buffer_bytes):
                self._open(source, buffer_bytes)
            case Look():
                self._look(source)
            case Close():
                self._close()

    def _open(self, source: Source, buffer_bytes: int) -> None:
        try:
            opened = source.open(buffer_bytes)
        except Exception as error:
            self._failed("died", f"{type(error).__name__}: {error}")
            return
        if isinstance(opened, Unavailable):
            self._failed("unavailable", opened.reason)
            return
        self._feed = opened
        self._recovery.opened(self._clock())
        log.log(logging.DEBUG if self.reason == _NOT_OPEN else logging.INFO, "device events are told")
        self.reason = ""

    def _wait(self, wait_s: float, feed: Feed | None) -> int:
        """What the feed's descriptor has, 0 for nothing."""
        poll = select.poll()
        poll.register(self._wake_r, select.POLLIN)
        if feed is not None:
            poll.register(feed.fileno(), select.POLLIN)
        # Rounded up: a wait of less than a millisecond would come out as none, and be repeated.
        ready = dict(poll.poll(int(min(wait_s, BEAT_S) * 1000) + 1))
        return ready.get(feed.fileno(), 0) if feed is not None and not self._ends else 0

    def _receive(self, feed: Feed) -> None:
        for _ in range(AT_A_TIME):
            try:
                event = feed.receive()
            except Exception as error:
                self._lost(error)
                return
            if event is None or self._ends:
                return
            if self.known is not None:
                self.known = learned(self.known, event)
            self._hand_on([event])

    def _look(self, source: Source) -> None:
        seen = None
        if self.hung is None or not self.hung.is_alive():
            self.looking = True
            try:
                seen = by_path(source.devices())
            except Exception:  # events may come all the same
                self._count.faults += 1
                log.warning("devices cannot be listed", exc_info=True)
            finally:
                self.looking = False
        self._recovery.looked(self._clock(), seen=seen is not None)
        if seen is not None:
            before, self.known = self.known, seen
            self._hand_on(differences(before, seen) if before is not None else ())

    def _hand_on(self, events: Iterable[DeviceEvent]) -> None:
        for event in events:
            if self._ends:
                return
            self.beat_s = self._clock()
            self._count.events += 1
            self._count.found += event.found
            try:
                self._on_event(event)
            except Exception:
                self._count.callback_errors += 1
                log.warning("a device event could not be handled", exc_info=True, extra={"fields": _fields(event)})

    def _lost(self, error: Exception) -> None:
        overflow = isinstance(error, OSError) and error.errno == errno.ENOBUFS
        self._failed("overflow" if overflow else "died", str(error) or type(error).__name__)

    def _failed(self, fault: Fault, reason: str) -> None:
        self._count.overflows += fault == "overflow"
        self._count.faults += fault == "died"
        level = logging.INFO if fault == "unavailable" else logging.WARNING
        if reason != self.reason or level == logging.WARNING:
            log.log(level, "device events are not told", extra={"fields": {"fault": fault, "reason": reason}})
        self.reason = reason
        for effect in self._recovery.failed(fault, self._clock()):
            if isinstance(effect, Close):
                self._close()

    def _close(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            with contextlib.suppress(Exception):
                feed.close()


def _fields(event: DeviceEvent) -> dict[str, str]:
    return {"action": event.action, "subsystem": event.subsystem, "device": event.name}
