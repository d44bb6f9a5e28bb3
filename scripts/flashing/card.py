"""The disk that is written: opened so that nobody else can have it, and read past the kernel's cache."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
import time
from pathlib import Path
from types import TracebackType

from flashing.terms import PIECE_BYTES, BlockDevice, FlashError

# linux/fs.h
_BLKRRPART = 0x125F
_BLKGETSIZE64 = 0x80081272
# Direct reads have to begin and end at multiples of the disk's own blocks, of which 4096 is the largest in use.
_ALIGN_BYTES = 4096
# udev looks at a disk for some tenths of a second whenever somebody has closed it.
_LOCK_TRIES, _LOCK_PAUSE_S = 50, 0.1


def require_permission(path: Path) -> None:
    """Raises `FlashError` unless this user may write to the disk: whoever has to begin anew with sudo should not have
    waited for the image to be read."""
    if not os.access(path, os.W_OK):
        raise _for_root(path)


def _for_root(path: Path) -> FlashError:
    return FlashError(f"{path} may only be written by root", "Run the same with sudo.")


class Card:
    """A whole disk, from `with` to the end of its block.

    Raises `FlashError` when it cannot be had, and `OSError` when it fails later.
    """

    def __init__(self, path: Path, expected: BlockDevice) -> None:
        self.path = path
        self.size_bytes = expected.size_bytes
        try:
            # Exclusive: fails when the kernel uses any part of it, also in ways that it tells nobody about.
            self._fd = os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
        except OSError as error:
            raise _cannot_open(path, error) from error
        try:
            self._check(expected)
            _lock(self._fd)
            self._direct = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        except BaseException:
            os.close(self._fd)
            raise
        # Memory that is mapped begins at a page, as direct reads want it.
        self._buffer = mmap.mmap(-1, PIECE_BYTES + 2 * _ALIGN_BYTES)

    def __enter__(self) -> Card:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._buffer.close()
        os.close(self._direct)
        os.close(self._fd)

    def write(self, offset: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, offset)
            offset += written
            view = view[written:]

    def flush(self) -> None:
        """Wait until the disk has taken everything; errors of earlier writes come up here at the latest."""
        os.fsync(self._fd)

    def read(self, offset: int, size: int) -> bytes:
        """At most `PIECE_BYTES`, from the disk itself and never from the cache. Shorter at the end of the disk."""
        start = offset - offset % _ALIGN_BYTES
        # The last block may be smaller than what others are aligned to.
        wanted = min(-(-(offset + size) // _ALIGN_BYTES) * _ALIGN_BYTES, self.size_bytes) - start
        got = 0
        while got < wanted:
            count = os.preadv(self._direct, [memoryview(self._buffer)[got:wanted]], start + got)
            if not count:
                break
            got += count
        return self._buffer[offset - start : min(got, offset - start + size)]

    def share(self) -> None:
        """Let another program open the disk for writing, but keep udev and with it the desktop away."""
        shared = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        os.close(self._fd)
        self._fd = shared
        _lock(self._fd)

    def announce(self) -> None:
        """Have the kernel read the new partition table. Somebody may have the disk by now; then it has done so."""
        try:
            fcntl.ioctl(self._fd, _BLKRRPART)
        except OSError:
            return

    def _check(self, expected: BlockDevice) -> None:
        found = os.fstat(self._fd)
        number = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
        if not stat.S_ISBLK(found.st_mode) or number != expected.number:
            raise FlashError(f"{self.path} is another device than a moment ago", "Run this again.")
        answer = fcntl.ioctl(self._fd, _BLKGETSIZE64, bytes(8))
        if struct.unpack("Q", answer)[0] != expected.size_bytes:
            raise FlashError(f"Another card lies in {self.path} than a moment ago", "Run this again.")


def _lock(fd: int) -> None:
    """udev leaves a disk alone while this lock is held (systemd.io/BLOCK_DEVICE_LOCKING).

    A courtesy only: who does not get it goes on without.
    """
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_LOCK_PAUSE_S)
        else:
            return


def _cannot_open(path: Path, error: OSError) -> FlashError:
    if isinstance(error, PermissionError):
        return _for_root(path)
    reasons = {
        errno.EBUSY: ("the kernel is using it", "Something on it is mounted or in use, perhaps in a container."),
        errno.EROFS: ("it is read-only", "Slide the lock switch at the card's side away from LOCK."),
        errno.ENOMEDIUM: ("there is no card in it", "Push it in until it clicks."),
    }
    reason, hint = reasons.get(
        error.errno or 0, (error.strerror or str(error), "Try another reader, then another card.")
    )
    return FlashError(f"{path} cannot be opened: {reason}", hint)
