"""Everything about memory in one reading, for whoever decides by it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from magnitude.board.group_memory import GroupMemory
from magnitude.board.memory import MemorySnapshot, effective_memory, groups_of
from magnitude.board.memory_events import MemoryEvents, read_events
from magnitude.board.memory_stall import MemoryStall, StallReader
from magnitude.board.process_memory import ProcessMemory, read_process
from magnitude.board.roots import HostRoots

CONTROLLER_HINT = (
    "Boot the kernel with cgroup_enable=memory (on a Raspberry Pi: in cmdline.txt of the boot partition); "
    "until then MemoryMax= of a unit does nothing"
)


class MemoryReading(msgspec.Struct, frozen=True, kw_only=True):
    """One look. `service` is this process, `engines` those of the processes asked for that were there; `groups` are
    all control groups that any of them is in."""

    memory: MemorySnapshot
    groups: tuple[GroupMemory, ...] = ()
    stalls: tuple[MemoryStall, ...] = ()
    events: MemoryEvents = MemoryEvents()
    service: ProcessMemory | None = None
    engines: tuple[ProcessMemory, ...] = ()


class MemoryReader:
    """Reads kernel files, which may block for a moment: call it from a worker thread, one call at a time."""

    def __init__(self, roots: HostRoots | None = None) -> None:
        self._roots = roots or HostRoots()
        self._stalls = StallReader(self._roots)

    def read(self, engine_pids: Sequence[int] = ()) -> MemoryReading:
        memory = effective_memory(self._roots)
        groups = {group.path: group for group in memory.groups}
        for pid in engine_pids:
            groups |= {group.path: group for group in groups_of(self._roots, pid) if group.path not in groups}
        processes = (read_process(self._roots, pid) for pid in engine_pids)
        return MemoryReading(
            memory=memory,
            groups=tuple(groups.values()),
            stalls=self._stalls.stalls(),
            events=read_events(self._roots, tuple(groups.values())),
            service=read_process(self._roots, os.getpid()),
            engines=tuple(process for process in processes if process is not None),
        )
