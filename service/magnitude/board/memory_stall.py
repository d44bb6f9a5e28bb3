"""Pressure stall information of memory: for how much of the time somebody waited for it.

Kernels are built without it, or with it switched off at boot, as for the Raspberry Pi; then the files are missing,
or open and fail to be read. So each file is tried once by reading it, and what fails is not asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from magnitude.board.cgroup import chains, unit_folder
from magnitude.board.roots import HostRoots, read_text

PSI_HINT = "Boot the kernel with psi=1 (on a Raspberry Pi: in cmdline.txt of the boot partition)"


class MemoryStall(msgspec.Struct, frozen=True, kw_only=True):
    """Percent of the last ten seconds in which some task, or all of them (`full`), waited for memory."""

    path: str
    some_percent: float
    full_percent: float


class StallReader:
    """Reads the service's group and the board, as far as the kernel tells. Not thread-safe."""

    def __init__(self, roots: HostRoots, read: Callable[[Path], str | None] = read_text) -> None:
        self._roots = roots
        self._read = read
        self._files: list[Path] | None = None  # those that could be read

    def stalls(self) -> tuple[MemoryStall, ...]:
        """The group's figures first, then the board's; empty when the kernel has none."""
        if self._files is None:
            self._files = stall_files(self._roots)
        found: list[MemoryStall] = []
        for path in list(self._files):
            stall = parse_stall(self._read(path) or "", path)
            if stall is None:
                self._files.remove(path)
            else:
                found.append(stall)
        return tuple(found)


def stall_files(roots: HostRoots) -> list[Path]:
    """Where the figures would be: of the service's group (cgroup v2), and last of the board."""
    units = [unit_folder(chain.folders) for chain in chains(roots, "memory") if chain.version == 2]
    return [*(folder / "memory.pressure" for folder in units), roots.proc / "pressure/memory"]


def parse_stall(text: str, path: Path) -> MemoryStall | None:
    """`some avg10=0.12 avg60=... total=...` and the same for `full`; None for anything else."""
    percent: dict[str, float] = {}
    for line in text.splitlines():
        kind, *words = line.split() or [""]
        for word in words:
            name, _, value = word.partition("=")
            try:
                if name == "avg10":
                    percent[kind] = float(value)
            except ValueError:
                return None
    if "some" not in percent:
        return None
    return MemoryStall(path=str(path), some_percent=percent["some"], full_percent=percent.get("full", 0.0))
