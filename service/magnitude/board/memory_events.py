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
    """Counters of those of `groups` that they tell about: `high` of the one with the tightest memory.high, `max` and
    `oom` of the one with the tightest limit, `oom_kill` of the service's. A group's counters hold those of all below
    it, and what nothing bounds is counted where the service is."""
    if not groups:
        return MemoryEvents(board_oom_kill=oom_kills(roots))
    by_path = {Path(group.path): group for group in groups}
    unit = by_path[unit_folder(list(by_path))]
    throttled = min((g for g in groups if g.high_bytes is not None), key=lambda g: g.high_bytes or 0, default=unit)
    limited = min((g for g in groups if g.limit_bytes is not None), key=lambda g: g.limit_bytes or 0, default=unit)
    limit, counted = Path(limited.path), _fields(Path(limited.path) / "memory.events")
    if limited.version == 1:
        return MemoryEvents(
            path=limited.path,
            max=read_int(limit / "memory.failcnt"),
            oom_kill=_fields(limit / "memory.oom_control").get("oom_kill"),
            board_oom_kill=oom_kills(roots),
        )
    return MemoryEvents(
        path=limited.path,
        high=_fields(Path(throttled.path) / "memory.events").get("high"),
        max=counted.get("max"),
        oom=counted.get("oom"),
        oom_kill=group_oom_kills(Path(unit.path)),
        board_oom_kill=oom_kills(roots),
    )


def group_oom_kills(folder: Path) -> int | None:
    """Processes of the control group (version 2) at `folder`, and of those below it, that were killed for want of
    memory, whoever's limit it was; None where the kernel does not count them."""
    return _fields(folder / "memory.events").get("oom_kill")


def _fields(path: Path) -> dict[str, int]:
    """A kernel file with a name and a number a line."""
    found: dict[str, int] = {}
    for line in (read_text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if value.isdigit():
            found[name] = int(value)
    return found
