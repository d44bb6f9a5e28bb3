"""What to do when memory gets short. A pure state machine: it sees, and returns what is to be done.

The steps are those of `memory_ladder`, each dearer than the one before it. They are taken one at a time and in
order; only where memory is at its very end, or the kernel throttles so hard that nothing moves, all that can be taken
back are taken at once. Replacing the engine comes after them, and a restart of the service only after that has not
helped. Where others hold the memory, neither would, and the last two are left out.

Two faults are judged beside the ladder. An engine that has grown beyond what was planned for it is replaced however
much memory there is. And one that crawls (C code waits in the kernel, above memory.high, and hardly a token comes)
would stay so for ever: its requests are shed, and if that does not help, it is replaced.
"""

from __future__ import annotations

import math

import msgspec

from magnitude.governor.crawl import Crawl
from magnitude.governor.engine_growth import Growth, in_mb
from magnitude.governor.memory_ladder import STEPS, Ladder, Step
from magnitude.governor.memory_sight import MemorySight

_TRIM, _SHRINK_KV, _UNLOAD_IDLE, _REFUSE_LONG, _RECYCLE, _RESTART = range(1, len(STEPS))

# Share that stays of the KV that was held when memory got short. Halves: the first one leaves every running
# conversation its place on a board that is half idle, the second one follows only when long prompts are refused too.
SHRUNK = 0.5
SHRUNK_MORE = 0.25
# Where the service and its engines hold less than this share of what counts against the limit, others do, and a new
# process would give back next to nothing: an engine without its model is already a tenth of the smallest board.
OWN_SHARE = 0.2
# Models are told of other memory when it has changed by more than this: less is noise of the page cache.
BUDGET_CHANGE = 0.1


class Announce(msgspec.Struct, frozen=True):
    """From `before` the ladder went to `step`."""

    step: Step
    before: Step
    reason: str


class Trim(msgspec.Struct, frozen=True):
    """Drop caches and give freed memory back, in the service and the engine."""

    reason: str


class ShrinkKv(msgspec.Struct, frozen=True):
    """Save idle conversations, and keep KV within `share` of what it held when memory got short; 1: as planned."""

    share: float
    reason: str


class UnloadIdle(msgspec.Struct, frozen=True):
    """Unload what is not pinned and has no requests."""

    reason: str


class RefuseLong(msgspec.Struct, frozen=True):
    """Refuse new long prompts, or take them again."""

    on: bool
    reason: str


class Shed(msgspec.Struct, frozen=True):
    """Refuse what waits and cancel what runs, but for one."""

    reason: str


class Recycle(msgspec.Struct, frozen=True):
    """Replace the engine."""

    reason: str


class Restart(msgspec.Struct, frozen=True):
    """Replace the whole service. The last effect there is."""

    reason: str


class ModelsMayTake(msgspec.Struct, frozen=True):
    """So much would be free if the service and its engines held nothing."""

    free_bytes: int


Effect = Announce | Trim | ShrinkKv | UnloadIdle | RefuseLong | Shed | Recycle | Restart | ModelsMayTake


class MemoryGovernor:
    """Feed it a sight every few seconds, and at once when the kernel reports a shortage."""

    def __init__(self, ladder: Ladder | None = None) -> None:
        self.ladder = ladder or Ladder()
        self.reason = ""  # of the last change
        self._level = 0
        self._now_s = -math.inf
        self._changed_s = -math.inf
        self._calm_since_s: float | None = None
        self._again_s = -math.inf
        self._recycled_s = -math.inf
        self._crawl = Crawl()
        self._growth = Growth()
        self._told_bytes: int | None = None
        self._told_s = -math.inf

    @property
    def step(self) -> Step:
        return STEPS[self._level]

    def apply(self, sight: MemorySight, now_s: float) -> list[Effect]:
        """`now_s` is monotonic; a time before the last one counts as the last one."""
        now_s = self._now_s = max(self._now_s, now_s)
        if self._level == _RESTART:
            return []
        crawls = self._crawl.seen(sight, now_s, self.ladder)
        target = self._target(sight)
        effects = self._shed(now_s) if crawls else []
        if target > self._level or crawls:
            self._calm_since_s = None
            effects += self._rise(sight, target, now_s)
        else:
            effects += self._fall(sight, now_s)
        if not effects:
            effects = self._again(sight, target, now_s)
        if self._level < _RECYCLE:
            effects += self._watch_growth(sight, now_s)
        return effects + self._tell_models(sight, now_s)

    # --- the ladder ---

    def _target(self, sight: MemorySight) -> int:
        """The step that the figures ask for; the present one where there are none."""
        percent = sight.percent
        if percent is None or sight.limit_bytes is None:
            return max(self._level, _TRIM) if sight.alarmed else self._level
        target = sum(percent >= threshold for threshold in self.ladder.thresholds(sight.limit_bytes))
        if sight.alarmed:
            target = max(target, _TRIM)
        if (sight.stall_percent or 0.0) >= self.ladder.stall_percent:
            # Everything waits for memory though little of it is firmly held: mapped weights are read again and again.
            target = max(target, min(self._level + 1, _UNLOAD_IDLE))
        return target if self._ours(sight) else min(target, _REFUSE_LONG)

    @staticmethod
    def _ours(sight: MemorySight) -> bool:
        if sight.own_bytes is None or not sight.pressure_bytes:
            return True
        return sight.own_bytes >= OWN_SHARE * sight.pressure_bytes

    def _rise(self, sight: MemorySight, target: int, now_s: float) -> list[Effect]:
        extreme = (sight.percent or 0.0) >= self.ladder.extreme_percent
        effects: list[Effect] = []
        while self._level < min(target, _REFUSE_LONG) and (extreme or self._cooled(now_s)):
            effects += self._enter(self._level + 1, _why(sight), now_s)
            if not extreme:
                return effects
        if effects or self._level < _REFUSE_LONG:
            return effects
        if not self._recycle_has_shown(now_s):
            return []
        if self._level == _REFUSE_LONG and target >= _RECYCLE and self._cooled(now_s):
            return self._enter(_RECYCLE, _why(sight), now_s)
        if self._level == _RECYCLE and target >= _RESTART:
            return self._enter(_RESTART, f"replacing the engine did not help: {_why(sight)}", now_s)
        return []

    def _fall(self, sight: MemorySight, now_s: float) -> list[Effect]:
        if self._level == 0 or not self._is_calm(sight):
            self._calm_since_s = None
            return []
        if self._calm_since_s is None:
            self._calm_since_s = now_s
        if now_s - max(self._calm_since_s, self._changed_s) < self.ladder.calm_s:
            return []
        return self._enter(self._level - 1, _why(sight), now_s)

    def _is_calm(self, sight: MemorySight) -> bool:
        percent = sight.percent
        if percent is None or sight.limit_bytes is None or sight.alarmed:
            return False
        threshold = self.ladder.thresholds(sight.limit_bytes)[self._level - 1]
        stalled = (sight.stall_percent or 0.0) >= self.ladder.stall_percent / 2
        return percent < threshold - self.ladder.hysteresis_percent and not stalled

    def _cooled(self, now_s: float) -> bool:
        return now_s - self._changed_s >= self.ladder.cool_down_s

    def _recycle_has_shown(self, now_s: float) -> bool:
        """Whether an engine that was replaced, for whatever reason, has had its time to show."""
        return now_s - self._recycled_s >= self.ladder.recycle_s

    def _enter(self, level: int, reason: str, now_s: float) -> list[Effect]:
        before, self._level = self._level, level
        self.reason = reason
        self._changed_s = now_s
        self._again_s = now_s
        effects: list[Effect] = [Announce(STEPS[level], STEPS[before], reason)]
        rising = level > before
        crossed = level if rising else before
        if crossed == _SHRINK_KV:
            effects.append(ShrinkKv(SHRUNK if rising else 1.0, reason))
        elif crossed == _REFUSE_LONG:
            effects += [RefuseLong(rising, reason), ShrinkKv(SHRUNK_MORE if rising else SHRUNK, reason)]
        elif not rising:
            pass  # the other steps have nothing that could be taken back
        elif crossed == _TRIM:
            effects.append(Trim(reason))
        elif crossed == _UNLOAD_IDLE:
            effects.append(UnloadIdle(reason))
        elif crossed == _RECYCLE:
            self._recycled_s = now_s
            effects.append(Recycle(reason))
        else:
            effects.append(Restart(reason))
        return effects

    def _again(self, sight: MemorySight, target: int, now_s: float) -> list[Effect]:
        """Cheap steps once more, while memory stays short."""
        if target == 0 or self._level == 0 or now_s - self._again_s < self.ladder.again_s:
            return []
        self._again_s = now_s
        reason = _why(sight)
        effects: list[Effect] = [Trim(reason)]
        if self._level >= _UNLOAD_IDLE:
            effects.append(UnloadIdle(reason))
        return effects

    # --- an engine that crawls ---

    def _shed(self, now_s: float) -> list[Effect]:
        reason = self._crawl.reason
        effects: list[Effect] = []
        if self._crawl.begins(now_s):
            while self._level < _REFUSE_LONG:
                effects += self._enter(self._level + 1, reason, now_s)
            return [*effects, Shed(reason)]
        if self._crawl.lasts_s(now_s) < self.ladder.crawl_s or not self._recycle_has_shown(now_s):
            return []
        if self._level < _RECYCLE:
            return self._enter(_RECYCLE, reason, now_s)
        return self._enter(_RESTART, f"replacing the engine did not help: {reason}", now_s)

    # --- an engine that grows ---

    def _watch_growth(self, sight: MemorySight, now_s: float) -> list[Effect]:
        grown = self._growth.seen(sight, now_s, self.ladder)
        if grown == "":
            return []
        if self._growth.to_trim(now_s, self.ladder):
            return [Trim(grown)]
        if self._recycle_has_shown(now_s) and self._growth.to_recycle(now_s, self.ladder):
            self._recycled_s = now_s
            self.reason = grown
            return [Recycle(grown)]
        return []

    # --- models ---

    def _tell_models(self, sight: MemorySight, now_s: float) -> list[Effect]:
        if sight.own_bytes is None or sight.room_bytes is None or now_s - self._told_s < self.ladder.cool_down_s:
            return []
        free_bytes = sight.own_bytes + sight.room_bytes
        if self._told_bytes is not None and abs(free_bytes - self._told_bytes) <= BUDGET_CHANGE * self._told_bytes:
            return []
        self._told_bytes, self._told_s = free_bytes, now_s
        return [ModelsMayTake(free_bytes)]


def _why(sight: MemorySight) -> str:
    """The figures in one line."""
    percent = sight.percent
    if percent is None or sight.pressure_bytes is None or sight.limit_bytes is None:
        return "the kernel reports a shortage of memory"
    stall = f", {sight.stall_percent:.0f} % of the time stalled" if sight.stall_percent else ""
    return (
        f"{in_mb(sight.pressure_bytes)} of {in_mb(sight.limit_bytes)} ({percent:.0f} %, {sight.limit_path}) are held"
        f"{stall}; {in_mb(sight.available_bytes)} available"
    )
