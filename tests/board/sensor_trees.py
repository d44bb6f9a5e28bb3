"""Trees of temperature sensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kernel_trees import write_tree
from magnitude.board.profiles import load_profile
from magnitude.board.roots import HostRoots
from magnitude.board.sampler import Sampler
from magnitude.board.snapshot import Snapshot, TempSensor

T, HW = "sys/class/thermal", "sys/class/hwmon"


def write_zones(root: Path, zones: Mapping[str, str | int]) -> HostRoots:
    """Zones by name, numbered as they come."""
    tree: dict[str, str | int] = {}
    for number, (name, temp) in enumerate(zones.items()):
        tree |= {f"{T}/thermal_zone{number}/type": name, f"{T}/thermal_zone{number}/temp": temp}
    return write_tree(root, tree)


def write_drivers(root: Path, drivers: Mapping[int, tuple[str, int]]) -> HostRoots:
    """hwmon's drivers by number."""
    tree: dict[str, str | int] = {}
    for number, (name, temp) in drivers.items():
        tree |= {f"{HW}/hwmon{number}/name": name, f"{HW}/hwmon{number}/temp1_input": temp}
    return write_tree(root, tree)


def look(roots: HostRoots, board: str = "generic-arm") -> Snapshot:
    """One look at everything."""
    sampler = Sampler(roots, load_profile(board))
    try:
        return sampler.read(100.0)
    finally:
        sampler.close()


def sensor(snapshot: Snapshot, name: str) -> TempSensor:
    return next(each for each in snapshot.temps if each.name == name)
