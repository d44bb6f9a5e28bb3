"""What a temperature sensor sits at, by its name. Pure.

Numbers (`thermal_zone0`, `hwmon2`) say nothing: they move with every device that is added. What a name does not tell
is `other`, which decides nothing: among those are power controllers that say 100 °C for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from magnitude.board.profile import ZoneProfile
from magnitude.board.snapshot import SensorKind

# In this order: `gpu-skin` sits at the case, `pmic` and radios at nothing that counts.
_KINDS: tuple[tuple[SensorKind, re.Pattern[str]], ...] = (
    # A power controller's own (Qualcomm's are pm8150 and the like), radios, storage.
    ("other", re.compile(r"pmic|^pm[a-z]{0,3}\d|wifi|wlan|modem|nvme|drive|^sd|^rp1|^charger|^usb")),
    ("battery", re.compile(r"batt|^bat\d|^bms")),
    ("case", re.compile(r"skin|case|board|ambient|chassis|shell|tdiode|xo-therm")),
    ("npu", re.compile(r"npu|^tpu|^apu|^nsp|hailo")),
    ("gpu", re.compile(r"gpu|^mali|^g3d")),
    # The Raspberry Pi (cpu-thermal), Rockchip's mainline and vendor kernels (package, soc, bigcore0, littlecore),
    # Allwinner, Amlogic, MediaTek and Qualcomm (cpu...), Jetson (CPU-therm, tj-thermal), Intel and AMD.
    ("cpu", re.compile(r"^(mtkts)?cpu|^soc|^package|^bigcore|^littlecore|^big|^little|^x86-pkg|^cluster|^tj-|^tcpu")),
    ("cpu", re.compile(r"^coretemp$|^k10temp$|^zenpower$")),
)


def normal(name: str) -> str:
    """A name as all kernels would write it: hwmon turns `-` into `_`."""
    return name.strip().lower().replace("_", "-")


def kind_of(name: str, zones: Iterable[ZoneProfile] = ()) -> SensorKind:
    """What a board's profile says, else what the name itself tells."""
    known = zone_of(name, zones)
    if known is not None:
        return known.kind
    name = normal(name)
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")


def zone_of(name: str, zones: Iterable[ZoneProfile]) -> ZoneProfile | None:
    """The profile's entry for that sensor."""
    name = normal(name)
    return next((zone for zone in zones if name in map(normal, zone.names)), None)
