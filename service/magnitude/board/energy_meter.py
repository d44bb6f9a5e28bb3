"""Energy as this board measures it: a battery that feeds it, a sensor of power, or the processor's own counter.

Which one it is matters more than its figure: a battery sees the whole board, a sensor the rail that it sits at, the
processor's counter (RAPL) the chip alone. Kernel documentation: power_supply_class, hwmon/sysfs-interface,
power/powercap.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from magnitude.board.roots import HostRoots, read_int, read_text

MICRO = 1e-6


class EnergyMeter:
    """Adds up joules from one `sample` to the next. `name` says in words what is measured.

    `watts` reads power, which is taken to change evenly between two samples; `counter_j` a counter of energy that
    begins again at `wraps_at_j`. One of the two is given. They give None while the sensor does not answer.
    """

    def __init__(
        self,
        name: str,
        *,
        watts: Callable[[], float | None] | None = None,
        counter_j: Callable[[], float | None] | None = None,
        wraps_at_j: float = 0.0,
    ) -> None:
        self.name = name
        self._watts = watts
        self._counter_j = counter_j
        self._wraps_at_j = wraps_at_j
        self._last: tuple[float, float] | None = None
        self._joules: float | None = None

    def begin(self, now_s: float) -> None:
        """Count from here."""
        self._last = None
        self._joules = None
        self.sample(now_s)

    def sample(self, now_s: float) -> None:
        """Look, some times a second where power is read."""
        read = self._watts or self._counter_j
        value = read() if read is not None else None
        if value is None:
            return
        if self._last is not None:
            at_s, before = self._last
            if self._watts is not None:
                added = (value + before) / 2 * max(0.0, now_s - at_s)
            else:
                added = value - before if value >= before else value - before + self._wraps_at_j
            self._joules = (self._joules or 0.0) + max(0.0, added)
        self._last = (now_s, value)

    def end(self, now_s: float) -> float | None:
        """Joules since `begin`; None where fewer than two samples were to be had."""
        self.sample(now_s)
        return self._joules


def find_meter(roots: HostRoots | None = None) -> EnergyMeter | None:
    """The one that sees most of the board; None where nothing measures."""
    roots = roots or HostRoots()
    return _battery(roots) or _sensor(roots) or _processor(roots)


def _battery(roots: HostRoots) -> EnergyMeter | None:
    for folder in _entries(roots.sys / "class/power_supply"):
        if read_text(folder / "type") != "Battery" or read_text(folder / "status") != "Discharging":
            continue
        if read_text(folder / "scope") == "Device":  # of a mouse and the like
            continue
        if read_int(folder / "power_now") is not None:
            return EnergyMeter(f"battery {folder.name}, the whole board", watts=_reader(folder / "power_now"))
        if read_int(folder / "current_now") is not None and read_int(folder / "voltage_now") is not None:
            return EnergyMeter(f"battery {folder.name}, the whole board", watts=_product(folder))
    return None


def _sensor(roots: HostRoots) -> EnergyMeter | None:
    """Monitors of a rail (INA219 and its kin) before others, and never a graphics card's own."""
    names = {folder: read_text(folder / "name") or folder.name for folder in _entries(roots.sys / "class/hwmon")}
    for folder in sorted(names, key=lambda folder: not names[folder].startswith("ina")):
        if names[folder] in ("amdgpu", "nouveau", "i915", "xe"):
            continue
        for file in ("power1_input", "power1_average"):
            if read_int(folder / file) is not None:
                label = read_text(folder / "power1_label") or "power1"
                return EnergyMeter(f"sensor {names[folder]} {label}", watts=_reader(folder / file))
    return None


def _processor(roots: HostRoots) -> EnergyMeter | None:
    """The first package. Reading it takes root on most systems."""
    folder = roots.sys / "class/powercap/intel-rapl:0"
    most = read_int(folder / "max_energy_range_uj")
    if read_int(folder / "energy_uj") is None or most is None:
        return None
    return EnergyMeter(
        "the processor's counter (RAPL), the chip alone",
        counter_j=_reader(folder / "energy_uj"),
        wraps_at_j=most * MICRO,
    )


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _reader(file: Path) -> Callable[[], float | None]:
    def read() -> float | None:
        value = read_int(file)
        return abs(value) * MICRO if value is not None else None

    return read


def _product(folder: Path) -> Callable[[], float | None]:
    def read() -> float | None:
        current, voltage = read_int(folder / "current_now"), read_int(folder / "voltage_now")
        return abs(current * MICRO * voltage * MICRO) if current is not None and voltage is not None else None

    return read
