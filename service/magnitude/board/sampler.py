"""Looks at the board again and again, in a thread of its own, and keeps the latest snapshot."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from magnitude.board.bounded_reads import LIMIT_S, BoundedReads
from magnitude.board.kernel_file import KernelFile
from magnitude.board.memory_reading import MemoryReading
from magnitude.board.profile import BoardProfile
from magnitude.board.roots import HostRoots
from magnitude.board.sampling_rate import FAST_S, SamplingRate
from magnitude.board.sensors import Unit
from magnitude.board.snapshot import Snapshot
from magnitude.board.sources import SLOW, Sources

log = logging.getLogger("magnitude.sensors")

# Devices are looked for anew so often in case that an event was lost: a listing of some folders.
LOOK_ANEW_S = 60.0
# What has a thread of its own is waited for so long by `read`, which is called once.
ONCE_LIMIT_S = 1.5
# All is read in rounds, each of which has its cost; sensors at the processor say when. What else is due within this
# share of their period (a little more than half) goes with them, and so keeps its own period on the average.
TOGETHER = 0.55
# Sensors at the processor themselves are not read early, but for what a timer is off by.
EARLY_S = 0.02
# The read that finds out what there is to be read.
LISTING = "listing"


class Sampler:
    """`latest` never waits. `on_snapshot` is called from the sampler's thread, for each new one.

    `period_s` is the time between two looks while something moves (0.1 s at least; raises `ConfigError`). `units`
    override what zones count in, by name; `affinity` are the CPUs that this process may run on, `engine_pid` tells
    which process the engine is, `vcgencmd` is the command that asks a Raspberry Pi's firmware (see `Sources`), and
    `files` is how sensors are opened. Use either `start` or `read`, not both at once.
    """

    def __init__(
        self,
        roots: HostRoots,
        profile: BoardProfile,
        *,
        clock: Callable[[], float] = time.monotonic,
        period_s: float = FAST_S,
        units: Mapping[str, Unit] | None = None,
        affinity: Collection[int] | None = None,
        engine_pid: Callable[[], int | None] = lambda: None,
        vcgencmd: tuple[str, ...] | None = None,
        limit_s: float = LIMIT_S,
        files: Callable[[Path], KernelFile] = KernelFile,
    ) -> None:
        self.on_snapshot: Callable[[Snapshot], None] | None = None
        self._clock = clock
        self._board = profile.name
        self._rate = SamplingRate(period_s)
        self._find: Callable[[], Sources] = functools.partial(
            Sources,
            roots,
            profile,
            units=units,
            affinity=affinity,
            engine_pid=engine_pid,
            vcgencmd=vcgencmd,
            files=files,
        )
        self._reads = BoundedReads(limit_s=limit_s, alone=SLOW | {LISTING}, clock=clock)
        self._sources: Sources | None = None
        self._due: dict[str, float] = {}
        self._planned: Mapping[str, float] | None = None
        self._found_s = 0.0
        self._latest: Snapshot | None = None
        self._memory: MemoryReading | None = None
        self._wake = threading.Event()
        self._hurried = self._changed = self._looking = self._ends = False
        self._thread: threading.Thread | None = None

    # --- from any thread ---

    def start(self) -> None:
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="board", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns at once; the thread ends by itself."""
        self._ends = True
        self._wake.set()

    def latest(self) -> Snapshot | None:
        """None before the first one. Ages in it are as of its own time."""
        return self._latest

    def hurry(self) -> None:
        """Back to the fast rate now: something is about to move."""
        self._hurried = True
        self._wake.set()

    def changed(self) -> None:
        """Devices have come or gone: look for them anew."""
        self._changed = True
        self._wake.set()

    def note_memory(self, reading: MemoryReading) -> None:
        """Snapshots carry it from now on."""
        self._memory = reading

    @property
    def interval_s(self) -> float:
        """The present time between two samples of a sensor at the processor."""
        return self._rate.period_s(self._clock())

    # --- in one thread ---

    def read(self, now_s: float) -> Snapshot:
        """Look at everything once, at once. Takes as long as reads may: 0.2 s for each that hangs, and 1.5 s where
        those hang that are known to be slow. Where not even a list of sensors can be had, all is unknown."""
        sources = self._enumerate(now_s, ONCE_LIMIT_S)
        if sources is None:
            return Snapshot(at_s=now_s, board=self._board)
        self._read(sources, sources.periods(now_s, 1.0))
        # Whether hwmon is needed shows only now: which zones do not answer is known.
        self._read(sources, [key for key in sources.periods(now_s, 1.0) if key not in SLOW])
        sources.took(self._reads.wait(sorted(SLOW), ONCE_LIMIT_S))
        return self._publish(sources, now_s)

    def tick(self, now_s: float) -> float:
        """Read what is due; how long nothing will be, in s."""
        if self._hurried:
            self._hurried = False
            self._rate.hurry(now_s)
        sources = self._sources
        if sources is None or self._changed or now_s - self._found_s >= LOOK_ANEW_S:
            sources = self._enumerate(now_s, ONCE_LIMIT_S if sources is None else 0.0)
        if sources is None:
            return FAST_S
        period_s = self._rate.period_s(now_s)
        periods = self._plan(sources, now_s, period_s)
        near_s, at_once_s = now_s + TOGETHER * period_s, now_s + EARLY_S
        due = [
            key for key, then in self._due.items() if then <= near_s and (then <= at_once_s or not sources.leads(key))
        ]
        if due:
            self._read(sources, due)
            now_s = max(now_s, self._clock())
            # From when it was due, not from now: rounds must not drift apart.
            for key in due:
                then = self._due[key] + periods[key]
                self._due[key] = then if then > now_s else now_s + periods[key]
            self._publish(sources, now_s)
            self._plan(sources, now_s, self._rate.period_s(now_s))
        return max(0.0, min(then for key, then in self._due.items() if sources.leads(key)) - now_s)

    def close(self) -> None:
        """Let go of files and threads. Not while the sampler's own thread runs: it does that itself."""
        self._reads.close()
        if self._sources is not None:
            self._sources.close()
            self._sources = None

    def _run(self) -> None:
        while not self._ends:
            try:
                wait_s = self.tick(self._clock())
            except Exception:  # whatever a driver or we ourselves do wrong: the board must go on being seen
                log.exception("looking at the board failed", extra={"cause": "board"})
                wait_s = 1.0
            self._wake.wait(wait_s)
            self._wake.clear()
        self.close()

    def _enumerate(self, now_s: float, limit_s: float) -> Sources | None:
        """The sources as they are now, or those of before while listing them takes longer than `limit_s`. Listing
        reads names mostly, but some drivers ask their hardware even for those."""
        if not self._looking:
            self._looking, self._changed = True, False
            self._reads.run({LISTING: self._find})
        result = self._reads.wait([LISTING], limit_s).get(LISTING)
        if result is None:
            return self._sources
        self._looking = False
        self._found_s = now_s
        if result.error is not None:
            log.warning("sensors could not be listed: %s", result.error, extra={"cause": "listing"})
            return self._sources
        found: Sources = result.value
        if self._sources is not None:
            found.carry(self._sources)
        self._sources = found
        self._reads.forget(found.keys() | {LISTING})
        return found

    def _plan(self, sources: Sources, now_s: float, period_s: float) -> Mapping[str, float]:
        """Periods by key. Where they have changed, nothing is due later than a new period from now."""
        periods = sources.periods(now_s, period_s / FAST_S)
        if periods is not self._planned:
            self._planned = periods
            self._due = {key: min(self._due.get(key, now_s), now_s + every_s) for key, every_s in periods.items()}
        return periods

    def _read(self, sources: Sources, keys: Iterable[str]) -> None:
        sources.took(self._reads.run({key: sources.read(key) for key in keys}))
        sources.missed(self._reads.stuck, "no answer")

    def _publish(self, sources: Sources, now_s: float) -> Snapshot:
        snapshot = sources.snapshot(now_s, self._memory)
        self._rate.saw(snapshot.hottest_c, now_s)
        self._latest = snapshot
        if self.on_snapshot is not None:
            self.on_snapshot(snapshot)
        return snapshot
