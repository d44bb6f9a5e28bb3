"""The supply and the battery, as the power_supply class tells them."""

from __future__ import annotations

from pathlib import Path

from magnitude.board.kernel_file import KernelFile
from magnitude.board.roots import HostRoots, read_text
from magnitude.board.sensors import folders
from magnitude.board.snapshot import Power

# Kinds of supply that are no battery (Documentation/ABI/testing/sysfs-class-power: USB also as USB_PD, USB_C, ...).
_MAINS = ("Mains", "USB", "Wireless")
# Tenths of a degree (same).
_TEMP_PER_C = 10


class PowerReader:
    """All supplies of the board itself; batteries of mice and the like (`scope` Device) are none of it."""

    key = "power"

    def __init__(self, roots: HostRoots) -> None:
        self._mains: list[KernelFile] = []
        self._batteries: list[_Battery] = []
        for folder in folders(roots.sys / "class/power_supply", ""):
            if read_text(folder / "scope") == "Device":
                continue
            kind = read_text(folder / "type") or ""
            if kind == "Battery":
                self._batteries.append(_Battery(folder))
            elif kind.startswith(_MAINS):
                self._mains.append(KernelFile(folder / "online"))

    def read(self) -> Power:
        """A battery that feeds the board counts before one that does not; of several such the fullest. No supply
        that tells: a battery that charges or discharges says what it is fed by."""
        online = [value > 0 for file in self._mains if (value := file.try_int()) is not None]
        present = [battery for battery in self._batteries if battery.present]
        told = [battery.read() for battery in present]
        on_mains = any(online) if online else None
        statuses = [status for status, _, _ in told if status]
        discharging = "Discharging" in statuses if statuses else None
        if on_mains is None and statuses:
            on_mains = not discharging if discharging or {"Charging", "Full"} & set(statuses) else None
        feeding = [each for each in told if each[0] == "Discharging"] or told
        return Power(
            on_mains=on_mains,
            battery_percent=max((percent for _, percent, _ in feeding if percent is not None), default=None),
            discharging=discharging,
            battery_temp_c=max((temp for _, _, temp in told if temp is not None), default=None),
        )

    def close(self) -> None:
        for file in self._mains:
            file.close()
        for battery in self._batteries:
            battery.close()


class _Battery:
    def __init__(self, folder: Path) -> None:
        self._present, self._status = KernelFile(folder / "present"), KernelFile(folder / "status")
        self._capacity, self._temp = KernelFile(folder / "capacity"), KernelFile(folder / "temp")

    @property
    def present(self) -> bool:
        return self._present.try_int() != 0

    def read(self) -> tuple[str, float | None, float | None]:
        """Status, percent, °C."""
        percent, temp = self._capacity.try_int(), self._temp.try_int()
        status = self._status.try_text()
        return (
            status if status != "Unknown" else "",
            float(percent) if percent is not None and 0 <= percent <= 100 else None,
            temp / _TEMP_PER_C if temp is not None else None,
        )

    def close(self) -> None:
        for file in (self._present, self._status, self._capacity, self._temp):
            file.close()
