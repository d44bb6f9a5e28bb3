"""Joules from what a board measures of itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_trees import write_tree
from magnitude.board.energy_meter import EnergyMeter, find_meter

BATTERY = {
    "sys/class/power_supply/BAT0/type": "Battery",
    "sys/class/power_supply/BAT0/status": "Discharging",
    "sys/class/power_supply/BAT0/power_now": 8_000_000,
}
SENSOR = {"sys/class/hwmon/hwmon3/name": "ina226", "sys/class/hwmon/hwmon3/power1_input": 5_000_000}
RAPL = {
    "sys/class/powercap/intel-rapl:0/energy_uj": 90_000_000,
    "sys/class/powercap/intel-rapl:0/max_energy_range_uj": 100_000_000,
}


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (BATTERY | SENSOR | RAPL, "battery BAT0, the whole board"),
        (BATTERY | {"sys/class/power_supply/BAT0/status": "Charging"} | SENSOR, "sensor ina226 power1"),
        (SENSOR | RAPL, "sensor ina226 power1"),
        (
            {"sys/class/hwmon/hwmon0/name": "amdgpu", "sys/class/hwmon/hwmon0/power1_average": 9_000_000} | SENSOR,
            "sensor ina226 power1",
        ),
        (BATTERY | {"sys/class/power_supply/BAT0/scope": "Device"} | SENSOR, "sensor ina226 power1"),
        (RAPL, "the processor's counter (RAPL), the chip alone"),
    ],
)
def test_what_sees_most_of_the_board_is_taken_and_named(
    tmp_path: Path, files: dict[str, str | int], name: str
) -> None:
    meter = find_meter(write_tree(tmp_path, files))
    assert meter is not None
    assert meter.name == name


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"sys/class/power_supply/BAT0/type": "Battery", "sys/class/power_supply/BAT0/status": "Discharging"},
        {"sys/class/hwmon/hwmon0/name": "cpu_thermal", "sys/class/hwmon/hwmon0/temp1_input": 52000},
        {"sys/class/hwmon/hwmon0/power1_input": "n/a"},
    ],
)
def test_a_board_that_measures_nothing_has_no_meter(tmp_path: Path, files: dict[str, str | int]) -> None:
    assert find_meter(write_tree(tmp_path, files)) is None


def test_power_is_added_up_over_time(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, SENSOR)
    meter = find_meter(roots)
    assert meter is not None
    meter.begin(10.0)
    meter.sample(12.0)
    (roots.sys / "class/hwmon/hwmon3/power1_input").write_text("7000000\n")
    assert meter.end(14.0) == pytest.approx(5 * 2 + 6 * 2)


def test_a_battery_of_current_and_voltage_counts_as_their_product_of_either_sign(tmp_path: Path) -> None:
    files: dict[str, str | int] = {key: value for key, value in BATTERY.items() if not key.endswith("power_now")}
    files |= {
        "sys/class/power_supply/BAT0/current_now": -2_000_000,
        "sys/class/power_supply/BAT0/voltage_now": 4_000_000,
    }
    meter = find_meter(write_tree(tmp_path, files))
    assert meter is not None
    meter.begin(0.0)
    assert meter.end(3.0) == pytest.approx(24.0)


def test_a_counter_that_begins_again_is_followed(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, RAPL)
    meter = find_meter(roots)
    assert meter is not None
    meter.begin(0.0)
    (roots.sys / "class/powercap/intel-rapl:0/energy_uj").write_text("5000000\n")
    assert meter.end(1.0) == pytest.approx(15.0)


def test_a_sensor_that_is_silent_throughout_gives_nothing_and_one_that_comes_back_counts_on() -> None:
    values: list[float | None] = [None, None]
    meter = EnergyMeter("x", watts=lambda: values.pop(0))
    meter.begin(0.0)
    assert meter.end(1.0) is None
    values += [2.0, None, 2.0]
    meter.begin(0.0)
    meter.sample(1.0)
    assert meter.end(2.0) == pytest.approx(4.0)


@given(st.floats(0.1, 50), st.lists(st.floats(0.01, 10), min_size=1, max_size=20))
def test_constant_power_gives_power_times_time_however_it_is_looked_at(watts: float, steps_s: list[float]) -> None:
    meter = EnergyMeter("x", watts=lambda: watts)
    now_s = 5.0
    meter.begin(now_s)
    for step_s in steps_s:
        now_s += step_s
        meter.sample(now_s)
    assert meter.end(now_s) == pytest.approx(watts * sum(steps_s))
