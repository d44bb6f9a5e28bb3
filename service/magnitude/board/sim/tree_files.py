"""Files that look like a driver's: figures that move, and settings that others write."""

from __future__ import annotations

import os
from pathlib import Path

# Longer than any figure. A figure is padded to it, so that each write has the same length and takes the whole file's
# place at once: no reader, also one that keeps the file open, ever meets an empty or a mixed one.
FIGURE_CHARS = 24


class Figure:
    """A file that only shows."""

    def __init__(self, path: Path, value: int | str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._shown = value
        path.unlink(missing_ok=True)  # of an earlier tree: it is not writable
        path.write_text(_padded(value))
        path.chmod(0o444)
        self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def show(self, value: int | str) -> None:
        if value != self._shown:
            os.pwrite(self._fd, _padded(value).encode(), 0)
            self._shown = value

    def close(self) -> None:
        os.close(self._fd)


class Setting:
    """A file that others write a number to. The kernel answers a write at once; here it stands as it was written
    until the next look."""

    def __init__(self, path: Path, value: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._shown = value
        path.write_text(f"{value}\n")

    @property
    def shown(self) -> int:
        return self._shown

    def taken(self) -> str | None:
        """What somebody has written since the last look; None: nothing. A file that is empty now belongs to a writer
        who is not done."""
        try:
            text = self._path.read_text("ascii", "replace").strip()
        except OSError:
            return None
        return text if text and text != str(self._shown) else None

    def show(self, value: int) -> None:
        """Put `value` there, also in place of what was written."""
        self._shown = value
        if self.taken() is None:
            return
        fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            # In one write over all that is there, so that no reader meets an empty file.
            os.pwrite(fd, f"{str(value).ljust(os.fstat(fd).st_size - 1)}\n".encode(), 0)
        finally:
            os.close(fd)


def _padded(value: int | str) -> str:
    text = str(value)
    if len(text) >= FIGURE_CHARS:
        raise ValueError(f"{text} is too long for a figure")
    return text.ljust(FIGURE_CHARS - 1) + "\n"
