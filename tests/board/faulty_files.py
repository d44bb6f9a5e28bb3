"""Kernel files that fail as no tree of ordinary files can."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from magnitude.board.kernel_file import KernelFile, NoSample


class Faults:
    """Opens files below a tree. `errors` (folder name to the kernel's name of an error) answers so in place of the
    file; a folder in `blocks` does not answer until `release`."""

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}
        self.blocks: set[str] = set()
        self.reads: dict[str, int] = {}
        self._released = threading.Event()

    def release(self) -> None:
        self.blocks.clear()
        self._released.set()

    def open(self, path: Path) -> KernelFile:
        return _Faulty(path, self._before)

    def _before(self, folder: str) -> None:
        self.reads[folder] = self.reads.get(folder, 0) + 1
        if folder in self.blocks:
            self._released.wait(30)
        if folder in self.errors:
            raise NoSample(self.errors[folder])


class _Faulty(KernelFile):
    def __init__(self, path: Path, before: Callable[[str], None]) -> None:
        super().__init__(path)
        self._before = before

    def read(self) -> str:
        self._before(self.path.parent.name)
        return super().read()


class PlainFile(KernelFile):
    """Opened without O_NONBLOCK: of a FIFO, opening waits until somebody writes."""

    def read(self) -> str:
        fd = os.open(self.path, os.O_RDONLY)
        try:
            return os.read(fd, 64).decode().strip()
        finally:
            os.close(fd)
