"""Looks at memory, lets the governor decide, and has its steps carried out, logged and counted."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, MutableMapping, Sequence
from typing import Protocol

import msgspec

from magnitude.board.group_memory import GroupMemory
from magnitude.board.memory_reading import CONTROLLER_HINT, MemoryReader, MemoryReading
from magnitude.board.memory_stall import PSI_HINT
from magnitude.board.roots import HostRoots
from magnitude.config.memory import MemorySettings
from magnitude.governor.memory import (
    Announce,
    Effect,
    MemoryGovernor,
    ModelsMayTake,
    Recycle,
    RefuseLong,
    Restart,
    Shed,
    ShrinkKv,
    Trim,
    UnloadIdle,
)
from magnitude.governor.memory_ladder import STEPS, Ladder, Step
from magnitude.governor.memory_sight import MemorySight, sight_of
from magnitude.governor.memory_state import MemoryState, StepTaken
from magnitude.supervise.pressure_watch import PressureWatch

log = logging.getLogger("magnitude.memory")

# Steps that are shown: an hour of a ladder that goes up and down at its fastest.
LAST_STEPS = 32


class MemoryActions(Protocol):
    """What can be done. Nothing here waits: what takes time goes on by itself."""

    def trim(self) -> None:
        """Drop caches and give freed memory back, in the service and the engine."""
        ...

    def shrink_kv(self, share: float) -> None:
        """Save idle conversations and keep KV within `share` of what it held when memory got short; 1: as planned."""
        ...

    def unload_idle(self) -> None:
        """Unload models that are not pinned and have no requests."""
        ...

    def long_prompts(self, tokens: int) -> None:
        """Prompts with more tokens to compute count as long."""
        ...

    def refuse_long(self, on: bool) -> None:
        """Refuse new long prompts, or take them again."""
        ...

    def shed(self, reason: str) -> None:
        """Refuse what waits and cancel what runs, but for one."""
        ...

    def recycle(self, reason: str) -> None:
        """Replace the engine."""
        ...

    def restart(self, reason: str) -> None:
        """End the service, to be started anew."""
        ...

    def normal(self) -> None:
        """There is memory again for what is only a comfort."""
        ...

    def models_may_take(self, free_bytes: int) -> None:
        """So much would be free if the service and its engines held nothing."""
        ...


class EngineFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Of the engine that serves: its process (None: there is none), the memory of its own that was planned for what
    is loaded in it, and the graph runs that it has finished. `busy`: it serves, and requests are open. `spare_pid`
    is one that waits to take its place; `kv_bytes` are held by KV, which belongs to the service."""

    pid: int | None = None
    spare_pid: int | None = None
    planned_bytes: int | None = None
    runs: int | None = None
    kv_bytes: int = 0
    busy: bool = False


class MemoryWatch:
    """`run` is a task of the event loop; readings are taken in a thread."""

    def __init__(
        self,
        settings: MemorySettings,
        actions: MemoryActions,
        *,
        engine: Callable[[], EngineFigures],
        roots: HostRoots | None = None,
        note: Callable[[MemoryReading], None] = lambda reading: None,
        told: Callable[[Step, str, str], None] = lambda step, what, reason: None,
        environ: MutableMapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`note` is told of each reading, `told` of each step: which, what was done, and why."""
        self._actions = actions
        self._note = note
        self._step_told = told
        self._engine = engine
        self._clock = clock
        self._reader = MemoryReader(roots)
        self.governor = MemoryGovernor()
        self._kv_share = 1.0
        self.tune(settings)
        self._alarm = asyncio.Event()
        self._told = PressureWatch(
            self._alarm.set, roots=roots or HostRoots(), environ=os.environ if environ is None else environ
        )
        self._reading: MemoryReading | None = None
        self._sight = MemorySight()
        self._taken: deque[tuple[float, Step, str, str]] = deque(maxlen=LAST_STEPS)
        self._counts: Counter[str] = Counter()

    def tune(self, settings: MemorySettings) -> None:
        """From the next look on these settings hold."""
        self._settings = settings
        if not settings.enabled and self.governor.step != "normal":
            # Nobody would take these back any more.
            self._actions.refuse_long(False)
            self._actions.shrink_kv(1.0)
            self._actions.normal()
            self._kv_share = 1.0
            self.governor = MemoryGovernor()
        self.governor.ladder = Ladder(
            thresholds_percent=tuple(settings.thresholds_percent),
            cool_down_s=settings.cool_down_s,
            engine_limit_percent=settings.engine_limit_percent,
        )
        self._actions.long_prompts(settings.long_prompt_tokens)

    async def run(self) -> None:
        """Look every `check_every_s`, and when the kernel reports a shortage, until cancelled."""
        self._told.start()
        try:
            alarmed = False
            while True:
                try:
                    await self.look(alarmed=alarmed)
                except Exception:
                    log.exception("memory could not be looked at")
                try:
                    alarmed = await asyncio.wait_for(self._alarm.wait(), self._settings.check_every_s)
                except TimeoutError:
                    alarmed = False
                self._alarm.clear()
        finally:
            self._told.close()

    async def look(self, *, alarmed: bool = False) -> None:
        """One look, and what follows from it."""
        figures = self._engine()
        pids = [pid for pid in (figures.pid, figures.spare_pid) if pid is not None]
        reading = await asyncio.to_thread(self._reader.read, pids)
        first, self._reading = self._reading is None, reading
        self._note(reading)
        self._sight = sight_of(
            reading,
            engine_pid=figures.pid,
            alarmed=alarmed,
            busy=figures.busy,
            runs=figures.runs,
            planned_bytes=figures.planned_bytes,
            kv_bytes=figures.kv_bytes,
            own_percent=self._settings.own_limit_percent,
        )
        if first:
            for hint in self._hints():
                log.info("memory is seen only in part", extra={"fields": {"hint": hint}})
        if self._settings.enabled:
            for effect in self.governor.apply(self._sight, self._clock()):
                self._carry_out(effect)

    @property
    def sight(self) -> MemorySight:
        """What was seen last."""
        return self._sight

    @property
    def step(self) -> Step:
        return self.governor.step

    def state(self) -> MemoryState:
        """What was seen last, and what was done about it."""
        sight, reading, now_s = self._sight, self._reading, self._clock()
        if reading is None:
            return MemoryState(enabled=self._settings.enabled)
        stall = reading.stalls[0] if reading.stalls else None
        thresholds = self.governor.ladder.thresholds(sight.limit_bytes) if sight.limit_bytes else ()
        return MemoryState(
            enabled=self._settings.enabled,
            step=self.governor.step,
            reason=self.governor.reason,
            limit_bytes=sight.limit_bytes,
            limit_path=sight.limit_path,
            memory_limit=_tightest(reading.groups),
            pressure_bytes=sight.pressure_bytes,
            pressure_percent=None if sight.percent is None else round(sight.percent, 1),
            file_bytes=sight.file_bytes,
            available_bytes=sight.available_bytes,
            total_bytes=reading.memory.total_bytes,
            own_bytes=sight.own_bytes,
            engine_own_bytes=sight.engine.own_bytes if sight.engine else None,
            engine_planned_bytes=sight.engine.planned_bytes if sight.engine else None,
            psi="available" if stall else "unavailable",
            stall_some_percent=stall.some_percent if stall else None,
            stall_full_percent=stall.full_percent if stall else None,
            watch=self._told.source,
            high_events=reading.events.high,
            max_events=reading.events.max,
            oom_kills=reading.events.oom_kill,
            board_oom_kills=reading.events.board_oom_kill,
            thresholds_percent=dict(zip(STEPS[1:], thresholds, strict=False)),
            last_steps=[
                StepTaken(step=step, what=what, reason=reason, ago_s=round(max(0.0, now_s - at_s), 1))
                for at_s, step, what, reason in reversed(self._taken)
            ],
            steps=dict(self._counts),
            hints=self._hints(),
        )

    def step_text(self) -> str:
        """The present step in a few words, for a status line: "normal (41 %)"."""
        percent = self._sight.percent
        share = "" if percent is None else f" ({percent:.0f} %)"
        return f"{self.governor.step}{share}"

    def _hints(self) -> list[str]:
        reading = self._reading
        if reading is None:
            return []
        hints = []
        if not reading.memory.controller:
            hints.append(CONTROLLER_HINT)
        if not reading.stalls:
            hints.append(PSI_HINT)
        return hints

    def _carry_out(self, effect: Effect) -> None:
        actions = self._actions
        match effect:
            case Announce(step, before, reason):
                # On the way up the line of what is done says it.
                if STEPS.index(step) < STEPS.index(before):
                    fields = {"step": step, "reason": reason}
                    log.info("memory: step %s is over", before, extra={"fields": fields})
                if step == "normal":
                    actions.normal()
            case Trim(reason):
                self._do("trim", "caches dropped, freed memory given back", reason, actions.trim)
            case ShrinkKv(share, reason):
                tighter, self._kv_share = share < self._kv_share, share
                what = f"KV kept within {share:.0%} of what it held" if share < 1 else "KV as planned again"
                what = f"idle conversations saved, {what}" if tighter else what
                self._do("shrink_kv", what, reason, lambda: actions.shrink_kv(share), counts=tighter)
            case UnloadIdle(reason):
                self._do("unload_idle", "idle models unloaded", reason, actions.unload_idle)
            case RefuseLong(on, reason):
                what = "new long prompts refused" if on else "long prompts taken again"
                self._do("refuse_long", what, reason, lambda: actions.refuse_long(on), counts=on)
            case Shed(reason):
                what = "waiting requests refused, running ones cancelled but for one"
                self._do("refuse_long", what, reason, lambda: actions.shed(reason))
            case Recycle(reason):
                self._do("recycle", "engine replaced", reason, lambda: actions.recycle(reason))
            case Restart(reason):
                self._do("restart", "service restarted", reason, lambda: actions.restart(reason))
            case ModelsMayTake(free_bytes):
                actions.models_may_take(free_bytes)

    def _do(self, step: Step, what: str, reason: str, act: Callable[[], None], *, counts: bool = True) -> None:
        self._taken.append((self._clock(), step, what, reason))
        self._counts[step] += counts
        level = logging.WARNING if counts else logging.INFO
        log.log(level, "memory: %s", what, extra={"fields": {"step": step, "reason": reason}})
        try:
            self._step_told(step, what, reason)
            act()
        except Exception:
            # The next step must come all the same: it may be the one that saves the board.
            log.exception("a step against the shortage of memory failed")


def _tightest(groups: Sequence[GroupMemory]) -> str:
    limited = [group for group in groups if group.limit_bytes is not None]
    return min(limited, key=lambda group: group.limit_bytes or 0).path if limited else "none"
