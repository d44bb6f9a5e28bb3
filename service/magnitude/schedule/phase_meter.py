"""How long the engine was at prompts, at answers and at both, by what was open in it. Pure but for `WorkMeter`, which
looks at the open tasks whenever one of them may have begun or ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from magnitude.governor.thermal_terms import LoadSight, Phase
from magnitude.schedule.open_tasks import OpenTask
from magnitude.schedule.present_work import IDLE, PresentWork, present_work


class PhaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that went into each phase; as the meter gives them, since it was made."""

    idle_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    mixed_s: float = 0.0

    def since(self, earlier: PhaseTimes) -> PhaseTimes:
        """What has come since `earlier`."""
        return PhaseTimes(
            idle_s=self.idle_s - earlier.idle_s,
            prefill_s=self.prefill_s - earlier.prefill_s,
            decode_s=self.decode_s - earlier.decode_s,
            mixed_s=self.mixed_s - earlier.mixed_s,
        )

    @property
    def total_s(self) -> float:
        return self.idle_s + self.prefill_s + self.decode_s + self.mixed_s

    def by_phase(self) -> dict[Phase, float]:
        return {"idle": self.idle_s, "prefill": self.prefill_s, "decode": self.decode_s, "mixed": self.mixed_s}


class PhaseMeter:
    """Adds up. Times are monotonic; one that goes back counts as the last one."""

    def __init__(self, now_s: float) -> None:
        self._seconds: dict[Phase, float] = {"idle": 0.0, "prefill": 0.0, "decode": 0.0, "mixed": 0.0}
        self._phase: Phase = "idle"
        self._at_s = now_s

    def enter(self, phase: Phase, now_s: float) -> bool:
        """From now on the engine is at `phase`. True when that is another one than before."""
        self._add_up(now_s)
        before, self._phase = self._phase, phase
        return phase != before

    def times(self, now_s: float) -> PhaseTimes:
        self._add_up(now_s)
        seconds = self._seconds
        return PhaseTimes(
            idle_s=seconds["idle"],
            prefill_s=seconds["prefill"],
            decode_s=seconds["decode"],
            mixed_s=seconds["mixed"],
        )

    def _add_up(self, now_s: float) -> None:
        self._seconds[self._phase] += max(0.0, now_s - self._at_s)
        self._at_s = max(self._at_s, now_s)


class WorkMeter:
    """What the engine is at now, and how long it has been at what. `look` when a task may have begun, written its
    first token or ended; `on_change` is called when that has changed the phase, `on_look` in any case."""

    def __init__(self, tasks: Callable[[], Iterable[OpenTask]], clock: Callable[[], float]) -> None:
        self._tasks = tasks
        self._clock = clock
        self._meter = PhaseMeter(clock())
        self.on_change: Callable[[], None] = lambda: None
        self.on_look: Callable[[], None] = lambda: None

    def look(self) -> None:
        if self._meter.enter(self.present().phase, self._clock()):
            self.on_change()
        self.on_look()

    def present(self) -> PresentWork:
        return present_work(self._tasks())

    def times(self) -> PhaseTimes:
        return self._meter.times(self._clock())


class LoadLooks:
    """What each look at the load tells: what the engine is at, and what the time since the look before went into.
    `queue` gives running and waiting requests."""

    def __init__(self, meter: WorkMeter, queue: Callable[[], tuple[int, int]]) -> None:
        self._meter = meter
        self._queue = queue
        self._before = meter.times()

    def __call__(self) -> LoadSight:
        now = self._meter.times()
        spent, self._before = now.since(self._before), now
        running, waiting = self._queue()
        return load_sight(self._meter.present(), spent, running=running, waiting=waiting)


def load_sight(work: PresentWork, spent: PhaseTimes, *, running: int, waiting: int) -> LoadSight:
    """What the thermal governor is told of the load: `work` now, and what the time since its last look went into."""
    total_s = spent.total_s
    if total_s <= 0:
        return LoadSight(phase=work.phase, running=running, waiting=waiting, rows=work.decoding)
    return LoadSight(
        phase=work.phase,
        prefill_share=spent.prefill_s / total_s,
        decode_share=spent.decode_s / total_s,
        mixed_share=spent.mixed_s / total_s,
        running=running,
        waiting=waiting,
        rows=work.decoding,
    )


def work_by_phase(work: PresentWork, spent: PhaseTimes) -> list[tuple[float, PresentWork]]:
    """Seconds and the work that they went into, where only `work` at their end is known in full."""
    parts = [(seconds, phase) for phase, seconds in spent.by_phase().items() if seconds > 0]
    return [(seconds, _at(work, phase)) for seconds, phase in parts]


def _at(work: PresentWork, phase: Phase) -> PresentWork:
    if phase == work.phase:
        return work
    if phase == "idle":
        return IDLE
    return msgspec.structs.replace(
        work,
        phase=phase,
        decoding=0 if phase == "prefill" else max(1, work.decoding),
        entering=0 if phase == "decode" else max(1, work.entering),
    )
