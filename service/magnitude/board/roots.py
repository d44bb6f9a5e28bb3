"""Where the kernel's file trees are. Tests and the simulator put trees of their own in their place."""

from __future__ import annotations

from pathlib import Path

import msgspec


class HostRoots(msgspec.Struct, frozen=True, kw_only=True):
    """Roots of procfs, sysfs and the cgroup mount."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    cgroup: Path = Path("/sys/fs/cgroup")

    @classmethod
    def under(cls, root: Path) -> HostRoots:
        """The same three trees below `root`, as tests write them."""
        return cls(proc=root / "proc", sys=root / "sys", cgroup=root / "sys/fs/cgroup")


def read_text(path: Path) -> str | None:
    """The stripped content of a kernel file, or None when there is none to be had: files vanish with offline
    cores, drivers answer EBUSY or EIO, and no reader may fail for that."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """A kernel file that holds one whole number, or None."""
    text = read_text(path)
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
