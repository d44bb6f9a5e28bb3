"""What the governor sees of memory at one moment, made from a reading of the board."""

from __future__ import annotations

import msgspec

from magnitude.board.memory_reading import MemoryReading

# What the service and its engines may take of the board where no limit of a control group holds: as much as the
# shipped unit's MemoryMax= would let them.
OWN_SHARE_PERCENT = 85.0

BOARD = "board"  # the board's own memory, as a limit
OWN_BUDGET = "own budget"


class EngineSight(msgspec.Struct, frozen=True, kw_only=True):
    """An engine process: who it is, what it holds of its own (resident or swapped out), what was planned for it
    (None: unknown), and how many graph runs it has finished."""

    identity: tuple[int, int]
    own_bytes: int
    planned_bytes: int | None = None
    runs: int | None = None


class MemorySight(msgspec.Struct, frozen=True, kw_only=True):
    """`limit_bytes` is the limit that is nearest, `limit_path` the group that has it, `board` or `own budget`;
    `pressure_bytes` is what counts against it: memory that only processes can give back. `file_bytes` are clean
    pages of files beside it. `room_bytes` is the least that is left anywhere. None stands for unknown.

    `own_bytes` is held by the service and its engines, KV included. `stall_percent` is the share of time in which
    everything waited for memory. `alarmed`: the kernel has just reported a shortage. `high_events` counts the times
    that the kernel throttled a process of ours, since the group was made. `busy`: an engine serves, and
    requests are open.
    """

    limit_bytes: int | None = None
    limit_path: str = ""
    pressure_bytes: int | None = None
    file_bytes: int = 0
    room_bytes: int | None = None
    available_bytes: int = 0
    own_bytes: int | None = None
    stall_percent: float | None = None
    alarmed: bool = False
    high_events: int | None = None
    busy: bool = False
    engine: EngineSight | None = None

    @property
    def percent(self) -> float | None:
        """Pressure in percent of the limit."""
        if self.pressure_bytes is None or not self.limit_bytes:
            return None
        return 100.0 * self.pressure_bytes / self.limit_bytes


class _Bound(msgspec.Struct, frozen=True):
    limit_bytes: int
    pressure_bytes: int
    path: str
    file_bytes: int = 0


def sight_of(
    reading: MemoryReading,
    *,
    engine_pid: int | None = None,
    alarmed: bool = False,
    busy: bool = False,
    runs: int | None = None,
    planned_bytes: int | None = None,
    kv_bytes: int = 0,
    own_percent: float = OWN_SHARE_PERCENT,
) -> MemorySight:
    """The nearest of all limits, and the signals beside it.

    A group's memory.high counts as a limit: beyond it the kernel throttles. So does the board itself. Without any
    limit of a group the service keeps to `own_percent` of the board. `runs` and `planned_bytes` are those of the
    engine that serves, `engine_pid`; `kv_bytes` are held by all KV, whoever has mapped it.
    """
    memory = reading.memory
    processes = [*([reading.service] if reading.service else []), *reading.engines]
    # Shared memory is the KV, which all of them map; a new engine has not touched what the last one left.
    shared_bytes = max((kv_bytes, *(process.shared_bytes for process in processes)))
    own_bytes = sum(process.own_bytes for process in processes) + shared_bytes if processes else None
    bounds: list[_Bound] = []
    for group in reading.groups:
        limits = [limit for limit in (group.limit_bytes, group.high_bytes) if limit is not None]
        if limits and group.pressure_bytes is not None:
            bounds.append(_Bound(min(limits), group.pressure_bytes, group.path, group.file_bytes))
    limited = bool(bounds)
    if memory.total_bytes:
        bounds.append(_Bound(memory.total_bytes, max(0, memory.total_bytes - memory.available_bytes), BOARD))
        if not limited and own_bytes is not None:
            bounds.append(_Bound(int(memory.total_bytes * own_percent / 100), own_bytes, OWN_BUDGET))
    nearest = max(bounds, key=lambda bound: bound.pressure_bytes / max(1, bound.limit_bytes), default=None)
    engine = next((process for process in reading.engines if process.pid == engine_pid), None)
    return MemorySight(
        limit_bytes=nearest.limit_bytes if nearest else None,
        limit_path=nearest.path if nearest else "",
        pressure_bytes=nearest.pressure_bytes if nearest else None,
        file_bytes=nearest.file_bytes if nearest else 0,
        room_bytes=min((max(0, bound.limit_bytes - bound.pressure_bytes) for bound in bounds), default=None),
        available_bytes=memory.available_bytes,
        own_bytes=own_bytes,
        stall_percent=reading.stalls[0].full_percent if reading.stalls else None,
        alarmed=alarmed,
        high_events=reading.events.high,
        busy=busy,
        engine=EngineSight(
            identity=engine.identity, own_bytes=engine.own_bytes, planned_bytes=planned_bytes, runs=runs
        )
        if engine
        else None,
    )
