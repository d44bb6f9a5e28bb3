"""CPU clocks, as cpufreq tells them."""

from __future__ import annotations

import os
from pathlib import Path

from magnitude.board.cpu import parse_cpu_list, spaced_cpus
from magnitude.board.kernel_file import KernelFile
from magnitude.board.roots import HostRoots, read_int, read_text
from magnitude.board.sensors import folders
from magnitude.board.snapshot import ClockPolicy


class PolicyReader:
    """One policy. What only a hotplug changes is read once; `read` reads what moves."""

    def __init__(self, folder: Path, cpus: tuple[int, ...]) -> None:
        self.key = f"clock:{folder.name}"
        self._fixed = ClockPolicy(
            name=folder.name,
            cpus=cpus,
            opps_khz=_operating_points(folder),
            min_khz=positive(read_int(folder / "cpuinfo_min_freq")),
            max_khz=positive(read_int(folder / "cpuinfo_max_freq")),
            writable=os.access(folder / "scaling_max_freq", os.W_OK),
        )
        self._cap = KernelFile(folder / "scaling_max_freq")
        self._current = KernelFile(folder / "scaling_cur_freq")
        self._governor = KernelFile(folder / "scaling_governor")

    def read(self) -> ClockPolicy:
        """A figure that cannot be had now (an offline core's files answer EBUSY), or is zero, is None."""
        fixed = self._fixed
        return ClockPolicy(
            name=fixed.name,
            cpus=fixed.cpus,
            opps_khz=fixed.opps_khz,
            min_khz=fixed.min_khz,
            max_khz=fixed.max_khz,
            cap_khz=positive(self._cap.try_int()),
            cur_khz=positive(self._current.try_int()),
            governor=self._governor.try_text(),
            writable=fixed.writable,
        )

    def close(self) -> None:
        for file in (self._cap, self._current, self._governor):
            file.close()


def find_policies(roots: HostRoots) -> tuple[PolicyReader, ...]:
    """Policies with a CPU that is online, by their numbers. Empty where there is no cpufreq, as in most virtual
    machines."""
    tree = roots.sys / "devices/system/cpu"
    online = set(parse_cpu_list(read_text(tree / "online") or ""))
    found = []
    for folder in folders(tree / "cpufreq", "policy"):
        cpus = online_cpus(folder, online)
        if cpus:
            found.append(PolicyReader(folder, cpus))
    return tuple(found)


def online_cpus(folder: Path, online: set[int]) -> tuple[int, ...]:
    """A policy's CPUs that run: `affected_cpus`, or where that says nothing those of `related_cpus` that are online
    (all of them, where `online` is empty: not told)."""
    affected, related = (spaced_cpus(folder / name) for name in ("affected_cpus", "related_cpus"))
    return tuple(cpu for cpu in affected or related if not online or cpu in online)


def _operating_points(folder: Path) -> tuple[int, ...]:
    """Also those above the usual highest one, where the chip has such."""
    words: list[str] = []
    for name in ("scaling_available_frequencies", "scaling_boost_frequencies"):
        words += (read_text(folder / name) or "").split()
    return tuple(sorted({int(word) for word in words if word.isascii() and word.isdecimal() and int(word) > 0}))


def positive(khz: int | None) -> int | None:
    """Virtual machines and drivers without a table say 0 where they do not know."""
    return khz if khz is not None and khz > 0 else None
