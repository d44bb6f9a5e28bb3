"""Units beside the CPUs that have a clock of their own, as devfreq tells them."""

from __future__ import annotations

import re
from pathlib import Path

from magnitude.board.clocks import positive
from magnitude.board.kernel_file import KernelFile
from magnitude.board.roots import HostRoots
from magnitude.board.sensors import folders
from magnitude.board.snapshot import ClockedDevice, DeviceKind

# RK3588: fb000000.gpu (mainline: fb000000.gpu, panthor), fdab0000.npu, dmc. Memory controllers have as many names as
# makers: dmc, ddr (Amlogic), emc (Tegra), mif (Exynos), dvfsrc (MediaTek).
_KINDS: tuple[tuple[DeviceKind, re.Pattern[str]], ...] = (
    ("npu", re.compile(r"npu|tpu|vpu|apu")),
    ("gpu", re.compile(r"gpu|mali|g3d")),
    ("memory", re.compile(r"dmc|ddr|emc|mif|dvfsrc|memory-controller")),
)


class DeviceReader:
    """One device of `class/devfreq`."""

    def __init__(self, folder: Path) -> None:
        self.key = f"device:{folder.name}"
        self._name = folder.name
        self._kind = device_kind(folder.name)
        self._governor = KernelFile(folder / "governor")
        self._min, self._max = KernelFile(folder / "min_freq"), KernelFile(folder / "max_freq")
        self._current = KernelFile(folder / "cur_freq")

    def read(self) -> ClockedDevice:
        """The limits are those in force."""
        return ClockedDevice(
            name=self._name,
            kind=self._kind,
            governor=self._governor.try_text(),
            min_khz=_khz(self._min.try_int()),
            max_khz=_khz(self._max.try_int()),
            cur_khz=_khz(self._current.try_int()),
        )

    def close(self) -> None:
        for file in (self._governor, self._min, self._max, self._current):
            file.close()


def find_devices(roots: HostRoots) -> tuple[DeviceReader, ...]:
    return tuple(DeviceReader(folder) for folder in folders(roots.sys / "class/devfreq", ""))


def device_kind(name: str) -> DeviceKind:
    name = name.lower()
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")


def _khz(hz: int | None) -> int | None:
    return positive(hz // 1000 if hz is not None else None)
