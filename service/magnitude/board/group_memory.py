"""What one control group holds, and how much of it the kernel could not take back.

The kernel's own count of a group (`memory.current`) holds clean pages of files, which it drops as soon as somebody
needs the room: models whose weights are mapped from files look full by it and are not. So two figures are kept
apart: the raw count, above which nothing is held, and the pressure, which only the processes themselves can lower.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from magnitude.board.roots import read_int, read_text

# cgroup v1 writes "no limit" as the largest page-aligned signed 64-bit number (0x7FFFFFFFFFFFF000 with 4 KiB
# pages, a little less with larger ones). No board has an exbibyte, so everything from there on is no limit.
V1_UNLIMITED_BYTES = 1 << 60

# Kernel memory that cannot be reclaimed, for kernels before 5.18, whose memory.stat has no sum of it (`kernel`).
# The names are those of the kernel's admin guide on control groups v2.
_UNRECLAIMABLE = ("kernel_stack", "pagetables", "sec_pagetables", "percpu", "vmalloc", "slab_unreclaimable", "zswap")


class GroupMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One group. `used_bytes` is the raw count (None: the group does not tell), `pressure_bytes` the part that is
    anonymous, shared or the kernel's own; where the kernel does not split its count up, all of it.
    `file_bytes` are clean pages of files, `inactive_file_bytes` those of all file pages that go first.
    """

    path: str
    version: int
    limit_bytes: int | None
    high_bytes: int | None = None
    used_bytes: int | None = None
    pressure_bytes: int | None = None
    file_bytes: int = 0
    inactive_file_bytes: int = 0


def read_group(folder: Path, version: int) -> GroupMemory:
    """The group at `folder` of a hierarchy of cgroup `version`; what cannot be read is None or 0."""
    return _read_v2(folder) if version == 2 else _read_v1(folder)


def _read_v2(folder: Path) -> GroupMemory:
    used = read_int(folder / "memory.current")
    stat = read_stat(folder)
    kernel = stat["kernel"] - stat.get("slab_reclaimable", 0) if "kernel" in stat else 0
    if "kernel" not in stat:
        kernel = sum(stat.get(name, 0) for name in _UNRECLAIMABLE)
    firm = stat.get("anon", 0) + stat.get("shmem", 0) + max(0, kernel) + stat.get("sock", 0)
    dirty = stat.get("file_dirty", 0) + stat.get("file_writeback", 0)
    return GroupMemory(
        path=str(folder),
        version=2,
        limit_bytes=read_int(folder / "memory.max"),  # "max" is no number: no limit
        high_bytes=read_int(folder / "memory.high"),
        used_bytes=used,
        pressure_bytes=_pressure(used, firm if stat else None),
        file_bytes=max(0, stat.get("file", 0) - stat.get("shmem", 0) - dirty),
        inactive_file_bytes=stat.get("inactive_file", 0),
    )


def _read_v1(folder: Path) -> GroupMemory:
    used = read_int(folder / "memory.usage_in_bytes")
    stat = read_stat(folder)
    limit = read_int(folder / "memory.limit_in_bytes")
    if limit is not None and limit >= V1_UNLIMITED_BYTES:
        limit = None
    files = stat.get("total_inactive_file", 0) + stat.get("total_active_file", 0)
    dirty = stat.get("total_dirty", 0) + stat.get("total_writeback", 0)
    # Version 1 does not say how much of the kernel's memory could be reclaimed, so all that is no file counts.
    return GroupMemory(
        path=str(folder),
        version=1,
        limit_bytes=limit,
        used_bytes=used,
        pressure_bytes=_pressure(used, used - files if used is not None and stat else None),
        file_bytes=max(0, files - dirty),
        inactive_file_bytes=stat.get("total_inactive_file", 0),
    )


def _pressure(used: int | None, firm: int | None) -> int | None:
    """Both figures are counted apart and may differ by what is on its way; pressure is never above the raw count."""
    if firm is None or used is None:
        return used if firm is None else firm
    return max(0, min(used, firm))


def read_stat(folder: Path) -> dict[str, int]:
    """`memory.stat` of the group, in bytes; empty where there is none."""
    found: dict[str, int] = {}
    for line in (read_text(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if value.isdigit():
            found[name] = int(value)
    return found
