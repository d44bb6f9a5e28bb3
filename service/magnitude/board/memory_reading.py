"""Everything about memory in one reading, for whoever decides by it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from magnitude.board.memory import MemorySnapshot, effective_memory
from magnitude.board.memory_events import MemoryEvents, read_events
from magnitude.board.memory_stall import MemoryStall, StallReader
from magnitude.board.process_memory import ProcessMemory, read_process
from magnitude.board.roots import HostRoots

CONTROLLER_HINT = (
    "Boot the kernel with cgroup_enable=memory (on a Raspberry Pi: in cmdline.txt of the boot partition); "
    "until then MemoryMax= of a unit does nothing"
)


class MemoryReading(msgspec.Struct, frozen=True, kw_only=True):
    """One look. `service` is this process, `engines` those of the processes asked for that were there."""

    memory: MemorySnapshot
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
        processes = (read_process(self._roots, pid) for pid in engine_pids)
        return MemoryReading(
            memory=memory,
            stalls=self._stalls.stalls(),
            events=read_events(self._roots, memory),
            service=read_process(self._roots, os.getpid()),
            engines=tuple(process for process in processes if process is not None),
        )
