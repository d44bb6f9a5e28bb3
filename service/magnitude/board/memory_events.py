"""How often limits of memory were met: counters that only grow while a group lives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from magnitude.board.cgroup import unit_folder
from magnitude.board.group_memory import GroupMemory
from magnitude.board.oom import oom_kills
from magnitude.board.roots import HostRoots, read_int, read_text


class MemoryEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Times since the group was made that its processes were throttled above memory.high (`high`), hit the limit
    (`max`), found nothing more to reclaim (`oom`), and lost a process to it (`oom_kill`). None: the kernel does not
    count it. `board_oom_kill` is the same over the whole board, since boot."""

    path: str = ""
    high: int | None = None
    max: int | None = None
    oom: int | None = None
    oom_kill: int | None = None
    board_oom_kill: int | None = None


def read_events(roots: HostRoots, groups: Sequence[GroupMemory]) -> MemoryEvents:
    """Counters of the one of `groups` whose limit is tightest, memory.high included; where none has a limit, of the
    service's. A group's counters hold those of all groups below it."""
    bounds = [(min(b for b in (g.high_bytes, g.limit_bytes) if b is not None), g) for g in groups if _bounded(g)]
    by_path = {Path(group.path): group for group in groups}
    unit = by_path[unit_folder(list(by_path))] if by_path else None
    group = min(bounds, key=lambda entry: entry[0])[1] if bounds else unit
    board = oom_kills(roots)
    if group is None:
        return MemoryEvents(board_oom_kill=board)
    folder = Path(group.path)
    if group.version == 1:
        return MemoryEvents(
            path=group.path,
            max=read_int(folder / "memory.failcnt"),
            oom_kill=_fields(folder / "memory.oom_control").get("oom_kill"),
            board_oom_kill=board,
        )
    counted = _fields(folder / "memory.events")
    return MemoryEvents(
        path=group.path,
        high=counted.get("high"),
        max=counted.get("max"),
        oom=counted.get("oom"),
        oom_kill=counted.get("oom_kill"),
        board_oom_kill=board,
    )


def _bounded(group: GroupMemory) -> bool:
    return group.high_bytes is not None or group.limit_bytes is not None


def _fields(path: Path) -> dict[str, int]:
    """A kernel file with a name and a number a line."""
    found: dict[str, int] = {}
    for line in (read_text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if value.isdigit():
            found[name] = int(value)
    return found
