from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kernel_trees import write_tree
from magnitude.board.temperature import processor_temp_c


def zones(folder: Path, zones: Mapping[str, str | int]) -> float | None:
    """The temperature of a board whose thermal zones have these names and say this."""
    tree: dict[str, str | int] = {}
    for number, (name, temp) in enumerate(zones.items()):
        tree |= {
            f"sys/class/thermal/thermal_zone{number}/{what}": text for what, text in (("type", name), ("temp", temp))
        }
    return processor_temp_c(write_tree(folder, tree))


@pytest.mark.parametrize("broken", ["", "hot", "999999999"])
def test_a_sensor_that_says_nothing_sensible_costs_only_itself(tmp_path: Path, broken: str) -> None:
    assert zones(tmp_path, {"cpu-thermal": 51200, "cpu2-thermal": broken}) == 51.2


def test_a_sensor_that_cannot_be_read_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "sys/class/thermal/thermal_zone7/temp").mkdir(parents=True)  # opens, and fails to be read
    (tmp_path / "sys/class/thermal/thermal_zone7/type").write_text("cpu7-thermal\n")
    assert zones(tmp_path, {"cpu-thermal": 51200}) == 51.2


def test_what_is_not_at_the_processor_does_not_count(tmp_path: Path) -> None:
    assert zones(tmp_path / "a", {"CPU-therm": 47000, "PMIC-Die": 100000}) == 47.0
    assert zones(tmp_path / "b", {"PMIC-Die": 100000, "npu-thermal": 60000}) is None


def test_whole_degrees_of_a_vendors_kernel_are_understood(tmp_path: Path) -> None:
    assert zones(tmp_path, {"cpu_thermal_zone": 65}) == 65.0


@pytest.mark.parametrize("big", [("bigcore0-thermal", "bigcore2-thermal"), ("bigcore0_thermal", "bigcore1_thermal")])
def test_the_warmest_of_several_clusters_counts(tmp_path: Path, big: tuple[str, str]) -> None:
    found = zones(tmp_path, {"package-thermal": 70000, big[0]: 81000, big[1]: 88000, "npu-thermal": 90000})
    assert found == 88.0


@pytest.mark.parametrize(("disk", "processor"), [(0, 3), (3, 0)])
def test_without_zones_the_driver_is_found_by_its_name(tmp_path: Path, disk: int, processor: int) -> None:
    roots = write_tree(
        tmp_path,
        {
            f"sys/class/hwmon/hwmon{disk}/name": "nvme",
            f"sys/class/hwmon/hwmon{disk}/temp1_input": 71000,
            f"sys/class/hwmon/hwmon{processor}/name": "cpu_thermal",
            f"sys/class/hwmon/hwmon{processor}/temp1_input": 52000,
        },
    )
    assert processor_temp_c(roots) == 52.0


def test_a_machine_without_sensors_has_no_temperature(tmp_path: Path) -> None:
    assert processor_temp_c(write_tree(tmp_path, {})) is None
