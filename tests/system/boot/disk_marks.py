"""Marks that a writer leaves on the disk it writes to, so that a record of the disk's writes says what it was at.

They go around the file system: directly, each in the same block behind the file system's end.
"""

from __future__ import annotations

import json
import mmap
import os
from typing import NamedTuple

FILE_SYSTEM_BYTES = 48 << 20
MARKS_AT = FILE_SYSTEM_BYTES
DISK_BYTES = MARKS_AT + (1 << 20)
BLOCK_BYTES = 4096


class Mark(NamedTuple):
    """`writer` begins to write `generation`, or has been told that it is on the disk."""

    writer: str
    generation: int
    done: bool


class Marks:
    """Writes marks to the block device `device`."""

    def __init__(self, device: str) -> None:
        self._device = os.open(device, os.O_WRONLY | os.O_DIRECT)
        self._block = mmap.mmap(-1, BLOCK_BYTES)  # direct writes want memory at a page's border

    def leave(self, mark: Mark) -> None:
        self._block[:] = json.dumps(mark).encode().ljust(BLOCK_BYTES)
        os.pwrite(self._device, self._block, MARKS_AT)


def read_mark(data: bytes) -> Mark:
    return Mark(*json.loads(data))
