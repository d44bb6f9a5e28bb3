"""How warm the processor is, for people to look at.

Boards have many sensors, and one of them is always wrong: a power controller that says 100 °C for ever, a block that
is switched off and answers with an error, a board sensor stuck at 25 °C. So only those count whose name says that
they sit at the processor, and their numbers (`thermal_zone0`, `hwmon2`), which move, say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from magnitude.board.roots import HostRoots, read_int, read_text

# Thermal zones at the processor: the Raspberry Pi (cpu-thermal), Rockchip's mainline and vendor kernels (package,
# soc, bigcore0, littlecore), Allwinner, Amlogic, MediaTek and Qualcomm (cpu…), Jetson (CPU-therm), Intel.
_ZONE = re.compile(r"(?:cpu|soc|package|bigcore|littlecore|x86-pkg|cluster)")
# Drivers of the same sensors under hwmon.
_DRIVERS = frozenset({"cpu-thermal", "soc-thermal", "coretemp", "k10temp"})
# Zones count in thousandths of a degree; some vendors' kernels count in degrees. No processor runs at 0.2 °C.
_LEAST_MILLI = 200
# Beyond these a sensor is broken, or no sensor.
_POSSIBLE_C = (-40.0, 150.0)


def processor_temp_c(roots: HostRoots) -> float | None:
    """Of the sensors at the processor the warmest, in °C; None where there is none. Reading a sensor may block: for
    a thread of its own."""
    found = [temp for temp in _zones(roots) if _POSSIBLE_C[0] <= temp <= _POSSIBLE_C[1]]
    found = found or [temp for temp in _drivers(roots) if _POSSIBLE_C[0] <= temp <= _POSSIBLE_C[1]]
    return max(found, default=None)


def _zones(roots: HostRoots) -> Iterator[float]:
    for zone in _folders(roots.sys / "class/thermal", "thermal_zone*"):
        if _ZONE.match(_name(zone / "type")) and (value := read_int(zone / "temp")) is not None:
            yield value / 1000 if abs(value) >= _LEAST_MILLI else float(value)


def _drivers(roots: HostRoots) -> Iterator[float]:
    for device in _folders(roots.sys / "class/hwmon", "hwmon*"):
        if _name(device / "name") in _DRIVERS and (value := read_int(device / "temp1_input")) is not None:
            yield value / 1000


def _folders(parent: Path, pattern: str) -> list[Path]:
    try:
        return sorted(parent.glob(pattern))
    except OSError:
        return []


def _name(file: Path) -> str:
    return (read_text(file) or "").lower().replace("_", "-")
