"""Temperature sensors: which ones there are, what each says, and which of them to believe."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from magnitude.board.kernel_file import KernelFile, NoSample
from magnitude.board.profile import ZoneProfile
from magnitude.board.roots import HostRoots, read_text
from magnitude.board.sensor_names import kind_of, normal, zone_of
from magnitude.board.snapshot import SensorKind, TempSensor

log = logging.getLogger("magnitude.sensors")

Unit = Literal["milli", "degrees"]
Place = Literal["zone", "hwmon"]

# Zones count in thousandths of a degree; some vendors' kernels count in degrees. No processor runs at 0.2 °C.
LEAST_MILLI = 200
# Beyond these a sensor is broken, or no sensor: silicon is rated from -40 to 125 °C, and is shut down before 130.
POSSIBLE_C = (-40.0, 130.0)


class Sensor:
    """One sensor. `sample` reads it (in any one thread), `took` and `missed` say what became of that; `seen` is what
    to show."""

    def __init__(
        self, name: str, kind: SensorKind, place: Place, file: KernelFile, *, unit: Unit | None = None
    ) -> None:
        self.name = name
        self.kind = kind
        self.place = place
        self.file = file.path
        self.key = f"temp:{file.path}"
        self._reader = file
        # The kernel's own rule for hwmon (Documentation/hwmon/sysfs-interface): never guessed.
        self._unit: Unit | None = unit if unit is not None or place == "zone" else "milli"
        self._given = unit is not None
        self._temp_c: float | None = None
        self._at_s: float | None = None
        self._fault = ""

    @property
    def fault(self) -> str:
        return self._fault

    def sample(self) -> float:
        """In °C. Raises `NoSample`."""
        return self._degrees(self._reader.read_int())

    def took(self, temp_c: float, at_s: float) -> None:
        self._temp_c, self._at_s = temp_c, at_s
        if self._fault:
            log.info("the sensor %s answers again", self.name, extra=self._about(was=self._fault))
            self._fault = ""

    def missed(self, fault: str) -> None:
        """Its last sample stays, and ages."""
        if not self._fault:
            level = logging.WARNING if self.kind == "cpu" else logging.INFO
            log.log(level, "the sensor %s gives no sample: %s", self.name, fault, extra=self._about())
        self._fault = fault

    @property
    def asked(self) -> bool:
        """Whether it was ever read."""
        return self._at_s is not None or bool(self._fault)

    def age_s(self, now_s: float) -> float | None:
        return max(0.0, now_s - self._at_s) if self._at_s is not None else None

    def seen(self, now_s: float) -> TempSensor:
        return TempSensor(
            name=self.name,
            kind=self.kind,
            source=str(self.file),
            temp_c=self._temp_c,
            age_s=self.age_s(now_s),
            fault=self._fault,
        )

    def carry(self, old: Sensor) -> None:
        """Go on where `old`, the same sensor, was."""
        if not self._given:
            self._unit = old._unit
        self._temp_c, self._at_s, self._fault = old._temp_c, old._at_s, old._fault

    def close(self) -> None:
        self._reader.close()

    def _degrees(self, value: int) -> float:
        if value == 0:  # what a block says that is switched off
            raise NoSample("says 0")
        unit = self._unit or ("degrees" if 0 < value < LEAST_MILLI else "milli")
        if not self._given and self.place == "zone":
            unit = self._learn(unit, value)
        temp_c = float(value) if unit == "degrees" else value / 1000
        if not POSSIBLE_C[0] <= temp_c <= POSSIBLE_C[1]:
            raise NoSample(f"says {temp_c:g} °C")
        return temp_c

    def _learn(self, unit: Unit, value: int) -> Unit:
        """A figure that is too large for degrees settles it; until then a small one means degrees."""
        if unit == "degrees" and value >= 1000:
            unit = "milli"
        if unit == "degrees" and self._unit is None:
            log.warning(
                "the zone %s says %d: taken for whole degrees; `unit` of the zone in a board profile overrides that",
                self.name,
                value,
                extra=self._about(),
            )
        if unit == "degrees" or abs(value) >= 1000:
            self._unit = unit
        return unit

    def _about(self, **more: str) -> Mapping[str, object]:
        return {"fields": {"sensor": self.name, "file": str(self.file), **more}, "cause": f"sensor {self.file}"}


def find_sensors(
    roots: HostRoots,
    zones: Sequence[ZoneProfile] = (),
    units: Mapping[str, Unit] | None = None,
    files: Callable[[Path], KernelFile] = KernelFile,
) -> tuple[Sensor, ...]:
    """Thermal zones and, for the places where they may be needed, hwmon's sensors, in the order of their names.

    `zones` are the profile's, `units` override what it says, by name. A folder that vanishes meanwhile, or whose
    name cannot be read, is left out.
    """
    given = {normal(name): unit for name, unit in (units or {}).items()}
    found: list[Sensor] = []
    for place, name, file in (*_zones(roots), *_drivers(roots)):
        kind = kind_of(name, zones)
        if place == "hwmon" and kind == "other":
            continue  # disks and radios, some of which are woken up by being asked
        known = zone_of(name, zones)
        unit = given.get(normal(name), known.unit if known is not None and place == "zone" else None)
        found.append(Sensor(name, kind, place, files(file), unit=unit))
    return tuple(sorted(found, key=lambda sensor: (sensor.place != "zone", normal(sensor.name), str(sensor.file))))


def _zones(roots: HostRoots) -> Iterator[tuple[Place, str, Path]]:
    for folder in folders(roots.sys / "class/thermal", "thermal_zone"):
        if name := read_text(folder / "type"):
            yield "zone", name, folder / "temp"


def _drivers(roots: HostRoots) -> Iterator[tuple[Place, str, Path]]:
    """The first sensor of each driver: the package's where there are several (coretemp, k10temp). Old kernels keep a
    driver's files one folder further down."""
    for folder in folders(roots.sys / "class/hwmon", "hwmon"):
        for place in (folder, folder / "device"):
            name, file = read_text(place / "name"), place / "temp1_input"
            if name and file.exists():
                yield "hwmon", name, file
                break


def folders(parent: Path, prefix: str) -> list[Path]:
    """Folders of a class by their numbers; empty where there is none."""
    try:
        found = [folder for folder in parent.iterdir() if folder.name.startswith(prefix)]
    except OSError:
        return []
    return sorted(found, key=lambda folder: (len(folder.name), folder.name))
