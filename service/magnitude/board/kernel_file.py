"""One file of sysfs, read again and again: it stays open, since opening it costs several times what reading does."""

from __future__ import annotations

import errno
import os
from pathlib import Path

# More than any file read here holds (the longest is a list of clocks).
MOST_BYTES = 4096


class NoSample(Exception):
    """The file says nothing usable now; the text says why, in a word or two."""


class KernelFile:
    """`read` gives the stripped content, or raises `NoSample`. Not for two threads at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def read(self) -> str:
        try:
            if self._fd < 0:
                # Without O_NONBLOCK, some drivers wait until the block that the sensor sits in is switched on.
                self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            elif os.fstat(self._fd).st_nlink == 0:
                # The kernel says so itself when a device goes; other trees keep what is open readable.
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
            raw = os.pread(self._fd, MOST_BYTES, 0)
        except OSError as error:
            self.close()
            raise NoSample(fault_of(error)) from None
        text = raw.decode("utf-8", "replace").strip()
        if not text:
            raise NoSample("empty")
        return text

    def read_int(self) -> int:
        text = self.read()
        try:
            return int(text)
        except ValueError:
            raise NoSample("no number") from None

    def try_int(self) -> int | None:
        """None in place of `NoSample`."""
        try:
            return self.read_int()
        except NoSample:
            return None

    def try_text(self) -> str:
        """Nothing in place of `NoSample`."""
        try:
            return self.read()
        except NoSample:
            return ""

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def fault_of(error: OSError) -> str:
    """The kernel's name of the error (`EAGAIN`): short, and the same in every language."""
    return errno.errorcode.get(error.errno or 0, type(error).__name__)
