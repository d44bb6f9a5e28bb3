"""The mounted FAT partition, which is read-only but for the moments in which something is written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

MOUNT_POINT = Path("/boot/firmware")
MOUNTS = Path("/proc/self/mountinfo")

# Runs a command; None when it worked, otherwise why not.
Run = Callable[[Sequence[str]], str | None]


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A line of mountinfo: `device` is MAJOR:MINOR."""

    point: Path
    device: str
    read_only: bool


def find_mount(mountinfo: str, point: Path) -> Mount | None:
    """What is mounted at `point`, according to the text of /proc/PID/mountinfo (proc(5)); the topmost counts."""
    found = None
    for line in mountinfo.splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[4] == str(point):
            found = Mount(point=point, device=fields[2], read_only="ro" in fields[5].split(","))
    return found


def mount_at(point: Path, mountinfo: Path = MOUNTS) -> Mount | None:
    """What is mounted at `point` now."""
    try:
        return find_mount(mountinfo.read_text("utf-8", "replace"), point)
    except OSError:
        return None


@contextlib.contextmanager
def writable(point: Path, run: Run, mountinfo: Path = MOUNTS) -> Iterator[None]:
    """Makes the partition writable for the block, where it is mounted read-only. A partition that refuses (a card
    that is locked or damaged) stays as it is: then each write in the block fails by itself."""
    mount = mount_at(point, mountinfo)
    if mount is None or not mount.read_only:
        yield
        return
    opened = run(("mount", "-o", "remount,rw", str(point))) is None
    try:
        yield
    finally:
        if opened:
            # FAT keeps no journal: what is not written out before the power goes is lost.
            with contextlib.suppress(OSError):
                _sync(point)
            run(("mount", "-o", "remount,ro", str(point)))


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
