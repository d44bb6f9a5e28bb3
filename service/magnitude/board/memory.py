"""How much memory there is for this process, whoever says so: the board, or a control group above us.

A group's usage counts everything in it, siblings included, so the room left is worked out group by group.
Limits can change while we run (`systemctl set-property`): read again, do not keep.
"""

from __future__ import annotations

import msgspec

from magnitude.board.cgroup import CgroupChain, chains
from magnitude.board.group_memory import GroupMemory, read_group
from magnitude.board.roots import HostRoots, read_text


class MemorySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """`limit_bytes` is the tightest hard limit of the process's groups (None: none set), `limit_path` the group
    that has it. `headroom_bytes` is what can still be taken: the smallest of MemAvailable and every group's room.
    `groups` are the process's groups from its own upwards; `controller` says whether the kernel counts their memory
    at all (without it no limit holds, whatever a unit says).
    """

    total_bytes: int
    available_bytes: int
    swap_free_bytes: int
    limit_bytes: int | None
    limit_path: str | None
    high_bytes: int | None  # tightest memory.high: above it the kernel throttles the process, for ever if need be
    headroom_bytes: int
    controller: bool = True
    groups: tuple[GroupMemory, ...] = ()


def effective_memory(roots: HostRoots | None = None) -> MemorySnapshot:
    """Read the memory of this process's world.

    File cache that the kernel can drop at once (`inactive_file`) is not counted as used: memory-mapped weights
    would otherwise look like a leak.
    """
    roots = roots or HostRoots()
    board = _meminfo(roots)
    total, available = board.get("MemTotal", 0), board.get("MemAvailable", board.get("MemFree", 0))
    above = chains(roots, "memory")
    groups = tuple(read_group(folder, chain.version) for chain in above for folder in chain.folders)
    limit: int | None = None
    limit_path: str | None = None
    high: int | None = None
    headroom = available
    for group in groups:
        if group.limit_bytes is not None and (limit is None or group.limit_bytes < limit):
            limit, limit_path = group.limit_bytes, group.path
        if group.high_bytes is not None and (high is None or group.high_bytes < high):
            high = group.high_bytes
        used = max(0, (group.used_bytes or 0) - group.inactive_file_bytes)
        for bound in (group.limit_bytes, group.high_bytes):
            if bound is not None:
                headroom = min(headroom, max(0, bound - used))
    return MemorySnapshot(
        total_bytes=total,
        available_bytes=available,
        swap_free_bytes=board.get("SwapFree", 0),
        limit_bytes=limit,
        limit_path=limit_path,
        high_bytes=high,
        headroom_bytes=headroom,
        controller=any(group.used_bytes is not None for group in groups) or any(map(_has_controller, above)),
        groups=groups,
    )


def groups_of(roots: HostRoots, pid: int) -> tuple[GroupMemory, ...]:
    """The groups of process `pid`, its own first; empty when there is no such process."""
    return tuple(read_group(folder, c.version) for c in chains(roots, "memory", pid) for folder in c.folders)


def _has_controller(chain: CgroupChain) -> bool:
    """Version 1 mounts a folder for it; version 2 lists what there is, in the root too, whose own use it does not
    count."""
    if chain.version == 1:
        return True
    listed = (read_text(folder / "cgroup.controllers") or "" for folder in chain.folders)
    return any("memory" in text.split() for text in listed)


def _meminfo(roots: HostRoots) -> dict[str, int]:
    """Fields of /proc/meminfo in bytes (the file counts in KiB, whatever it calls them)."""
    fields: dict[str, int] = {}
    for line in (read_text(roots.proc / "meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            fields[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return fields
