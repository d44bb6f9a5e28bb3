"""Sights of memory, and a governor in simulated time."""

from __future__ import annotations

import msgspec

from magnitude.governor.memory import Announce, Effect, MemoryGovernor
from magnitude.governor.memory_ladder import Ladder
from magnitude.governor.memory_sight import EngineSight, MemorySight

LIMIT = 2_000_000_000
LADDER = Ladder(thresholds_percent=(70, 75, 80, 85, 90, 95))
LOOK_S = 5.0


def at(percent: float | None, **changes: object) -> MemorySight:
    """Pressure of `percent` of 2 GB, all of it the service's own."""
    pressure = None if percent is None else int(LIMIT * percent / 100)
    sight = MemorySight(limit_bytes=LIMIT, limit_path="/g", pressure_bytes=pressure, own_bytes=pressure)
    return msgspec.structs.replace(sight, **changes)


def engine(number: int = 1, *, own_mb: int = 300, planned_mb: int | None = 300, runs: int | None = 0) -> EngineSight:
    planned = None if planned_mb is None else planned_mb * 1_000_000
    return EngineSight(identity=(number, number), own_bytes=own_mb * 1_000_000, planned_bytes=planned, runs=runs)


class Simulation:
    """A governor that is shown something every 5 s. `done` are all effects but announcements, with their time."""

    def __init__(self, ladder: Ladder = LADDER) -> None:
        self.governor = MemoryGovernor(ladder)
        self.now_s = 1000.0
        self.done: list[tuple[float, Effect]] = []
        self.steps: list[tuple[float, str]] = []

    def see(self, sight: MemorySight, times: int = 1) -> list[Effect]:
        """The effects of the last look."""
        effects: list[Effect] = []
        for _ in range(times):
            effects = self.governor.apply(sight, self.now_s)
            for effect in effects:
                if isinstance(effect, Announce):
                    self.steps.append((self.now_s, effect.step))
                else:
                    self.done.append((self.now_s, effect))
            self.now_s += LOOK_S
        return effects

    def kinds(self) -> list[str]:
        return [type(effect).__name__ for _, effect in self.done if type(effect).__name__ != "ModelsMayTake"]

    def named(self) -> list[str]:
        return [step for _, step in self.steps]
