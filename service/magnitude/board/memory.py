"""How much memory there is for this process, whoever says so: the board, or a control group above us.

A group's usage counts everything in it, siblings included, so the room left is worked out group by group.
Limits can change while we run (`systemctl set-property`): read again, do not keep.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from magnitude.board.cgroup import chains
from magnitude.board.roots import HostRoots, read_int, read_text

# cgroup v1 writes "no limit" as the largest page-aligned signed 64-bit number (0x7FFFFFFFFFFFF000 with 4 KiB
# pages, a little less with larger ones). No board has an exbibyte, so everything from there on is no limit.
V1_UNLIMITED_BYTES = 1 << 60


class MemorySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """`limit_bytes` is the tightest hard limit of the process's groups (None: none set), `limit_path` the group
    that has it. `headroom_bytes` is what can still be taken: the smallest of MemAvailable and every group's room.
    """

    total_bytes: int
    available_bytes: int
    swap_free_bytes: int
    limit_bytes: int | None
    limit_path: str | None
    high_bytes: int | None  # tightest memory.high: above it the kernel throttles the process, for ever if need be
    headroom_bytes: int


class _Group(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    limit_bytes: int | None
    high_bytes: int | None
    used_bytes: int | None


def effective_memory(roots: HostRoots | None = None) -> MemorySnapshot:
    """Read the memory of this process's world.

    File cache that the kernel can drop at once (`inactive_file`) is not counted as used: memory-mapped weights
    would otherwise look like a leak.
    """
    roots = roots or HostRoots()
    board = _meminfo(roots)
    total, available = board.get("MemTotal", 0), board.get("MemAvailable", board.get("MemFree", 0))
    limit: int | None = None
    limit_path: str | None = None
    high: int | None = None
    headroom = available
    for chain in chains(roots, "memory"):
        read = _read_v2 if chain.version == 2 else _read_v1
        for group in map(read, chain.folders):
            if group.limit_bytes is not None and (limit is None or group.limit_bytes < limit):
                limit, limit_path = group.limit_bytes, str(group.path)
            if group.high_bytes is not None and (high is None or group.high_bytes < high):
                high = group.high_bytes
            for bound in (group.limit_bytes, group.high_bytes):
                if bound is not None:
                    headroom = min(headroom, max(0, bound - (group.used_bytes or 0)))
    return MemorySnapshot(
        total_bytes=total,
        available_bytes=available,
        swap_free_bytes=board.get("SwapFree", 0),
        limit_bytes=limit,
        limit_path=limit_path,
        high_bytes=high,
        headroom_bytes=headroom,
    )


def _meminfo(roots: HostRoots) -> dict[str, int]:
    """Fields of /proc/meminfo in bytes (the file counts in KiB, whatever it calls them)."""
    fields: dict[str, int] = {}
    for line in (read_text(roots.proc / "meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            fields[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return fields


def _read_v2(folder: Path) -> _Group:
    used = read_int(folder / "memory.current")
    if used is not None:
        used = max(0, used - _stat(folder, "inactive_file"))
    return _Group(
        path=folder,
        limit_bytes=read_int(folder / "memory.max"),  # "max" is no number: no limit
        high_bytes=read_int(folder / "memory.high"),
        used_bytes=used,
    )


def _read_v1(folder: Path) -> _Group:
    used = read_int(folder / "memory.usage_in_bytes")
    if used is not None:
        used = max(0, used - _stat(folder, "total_inactive_file"))
    limit = read_int(folder / "memory.limit_in_bytes")
    if limit is not None and limit >= V1_UNLIMITED_BYTES:
        limit = None
    return _Group(path=folder, limit_bytes=limit, high_bytes=None, used_bytes=used)


def _stat(folder: Path, field: str) -> int:
    for line in (read_text(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == field and value.isdigit():
            return int(value)
    return 0
