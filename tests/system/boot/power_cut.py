"""What a disk may hold after a power cut, worked out from a record of everything that was written to it.

QEMU's filter `blklogwrites` keeps the writes and flushes of a disk in the order in which the guest asked for them. A
drive with a volatile cache has kept everything from before the last flush that it finished, and of what came later
any part in any order. So one recording gives as many power cuts as one likes, each in a fraction of a second.

The guest says on the same disk, behind its file system, what it is about to do and what is done (`disk_marks.py`).
These marks lie in the record at the moment when they were made, so that it is known for each cut which generation of
a file must be there at least and which one may be.
"""

from __future__ import annotations

import itertools
import random
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from disk_marks import MARKS_AT, Mark, read_mark

# The format of Linux' dm-log-writes, which QEMU writes too (Linux: Documentation/admin-guide/device-mapper/
# log-writes.rst): a super block, then one block a request, each followed by its data.
MAGIC = 0x6A736677736872
SUPER = struct.Struct("<QQQI")  # magic, version, entries, bytes of a sector
ENTRY = struct.Struct("<QQQQ")  # first sector, sectors, flags, bytes of a mark
FLUSH, FUA, DISCARD = 1, 2, 4

# What a drive writes whole or not at all; larger requests may be torn at its borders.
ATOMIC_BYTES = 4096


class Request(NamedTuple):
    """A write (`data`), a flush, or both: then the flush comes first. `durable` writes do not wait for a flush."""

    offset: int
    data: bytes
    flush: bool
    durable: bool


class Cut(NamedTuple):
    """A power cut: the disk after it, and what each writer had begun and done by then."""

    number: int
    disk: Path
    begun: dict[str, int]
    done: dict[str, int]


def read_log(path: Path) -> list[Request]:
    """The requests in a file of `blklogwrites`, oldest first. Discards are left out: they destroy what is free."""
    requests = []
    with path.open("rb") as file:
        magic, version, count, sector_bytes = SUPER.unpack(file.read(SUPER.size))
        if (magic, version) != (MAGIC, 1):
            raise ValueError(f"{path} is no record of writes")
        at = sector_bytes
        for _ in range(count):
            file.seek(at)
            first, sectors, flags, _ = ENTRY.unpack(file.read(ENTRY.size))
            at += sector_bytes
            if flags & DISCARD:
                continue
            file.seek(at)
            data = file.read(sectors * sector_bytes)
            at += len(data)
            requests.append(Request(first * sector_bytes, data, bool(flags & FLUSH), bool(flags & FUA)))
    return requests


def power_cuts(
    base: Path, requests: Sequence[Request], count: int, rng: random.Random, folder: Path
) -> Iterator[Cut]:
    """`count` power cuts in the middle of something: after a random request between a mark that says "begun" and
    the next one of the same writer. `base` is the disk before the first request. The disk of a cut is a file in
    `folder` that the next one overwrites."""
    marks = {index: mark for index, request in enumerate(requests) if (mark := _mark_of(request))}
    moments = sorted(rng.sample(_within_work(marks, len(requests)), count))
    for number, (moment, disk) in enumerate(disks_after(base, requests, moments, rng, folder)):
        begun: dict[str, int] = {}
        done: dict[str, int] = {}
        for index, mark in marks.items():
            if index < moment:
                (done if mark.done else begun)[mark.writer] = mark.generation
        yield Cut(number, disk, begun, done)


def disks_after(
    base: Path, requests: Sequence[Request], moments: Sequence[int], rng: random.Random, folder: Path
) -> Iterator[tuple[int, Path]]:
    """For each of `moments`, in rising order, the disk after a power cut before the request with that number. It is a
    file in `folder` that the next one overwrites."""
    durable, disk = folder / "durable.img", folder / "cut.img"
    _copy(base, durable)
    written = 0
    for moment in moments:
        flushed = _last_flush(requests, moment)
        with durable.open("r+b") as file:
            for request in requests[written:flushed]:
                _write(file, request.offset, request.data)
        written = max(written, flushed)
        _copy(durable, disk)
        with disk.open("r+b") as file:
            for request in requests[flushed:moment]:
                for at in range(0, len(request.data), ATOMIC_BYTES):
                    if request.durable or rng.random() < 0.5:
                        _write(file, request.offset + at, request.data[at : at + ATOMIC_BYTES])
        yield moment, disk


def take_out(disk: Path, target: Path) -> None:
    """Replay the journal of the ext4 file system in `disk`, as mounting it does, and copy its files to `target`."""
    target.mkdir()
    # Only the journal: a repair could hide what a mount would show. 0: nothing to do, 1: replayed.
    replayed = subprocess.run(
        ["e2fsck", "-E", "journal_only", "-p", str(disk)], capture_output=True, text=True, check=False
    )
    if replayed.returncode > 1:
        raise AssertionError(f"the journal could not be replayed: {replayed.stdout}{replayed.stderr}")
    copied = subprocess.run(
        ["debugfs", "-R", f"rdump / {target}", str(disk)], capture_output=True, text=True, check=True
    )
    if trouble := [line for line in copied.stderr.splitlines() if not line.startswith("debugfs ")]:
        raise AssertionError("\n".join(trouble))


def _within_work(marks: dict[int, Mark], end: int) -> list[int]:
    """Indexes of requests before which some writer has begun a generation and not finished it."""
    moments: list[int] = []
    order = [*sorted(marks), end]
    for index, following in itertools.pairwise(order):
        if not marks[index].done:
            moments += range(index + 1, following + 1)
    return moments


def _last_flush(requests: Sequence[Request], moment: int) -> int:
    """The index of the last flush before `moment`: what came before it has reached the medium."""
    return max((index for index in range(moment) if requests[index].flush), default=0)


def _mark_of(request: Request) -> Mark | None:
    return read_mark(request.data) if request.offset >= MARKS_AT else None


def _write(file: BinaryIO, offset: int, data: bytes) -> None:
    if data:
        file.seek(offset)
        file.write(data)


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "--reflink=auto", "--sparse=always", str(source), str(target)], check=True)
