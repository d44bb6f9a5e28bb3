"""Which sensors count, and what they are taken to say."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from sensor_trees import look, sensor, write_drivers, write_zones

from magnitude.board.kernel_file import NoSample
from magnitude.board.sensor_names import kind_of
from magnitude.board.sensors import Sensor, find_sensors
from magnitude.board.snapshot import SensorKind

VENDOR = ("soc-thermal", "bigcore0-thermal", "bigcore1-thermal", "littlecore-thermal", "npu-thermal")
MAINLINE = ("package-thermal", "bigcore0-thermal", "bigcore2-thermal", "littlecore-thermal", "npu-thermal")
RK3588_TEMPS = (70000, 81000, 88000, 69000, 90000)


def only(root: Path, name: str, temp: str | int, **units: str) -> Sensor:
    (found,) = find_sensors(write_zones(root, {name: temp}), units=units)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("names", [VENDOR, MAINLINE, tuple(name.replace("-", "_") for name in MAINLINE)])
@pytest.mark.parametrize("board", ["rock5b", "generic-arm"])
def test_the_warmest_cluster_counts_under_every_kernels_names(
    tmp_path: Path, names: tuple[str, ...], board: str
) -> None:
    snapshot = look(write_zones(tmp_path, dict(zip(names, RK3588_TEMPS, strict=True))), board)
    assert snapshot.hottest_c == 88.0


def test_a_power_controller_that_says_100_for_ever_decides_nothing(tmp_path: Path) -> None:
    snapshot = look(write_zones(tmp_path, {"CPU-therm": 47000, "GPU-therm": 45000, "PMIC-Die": 100000}))
    assert snapshot.hottest_c == 47.0
    assert snapshot.fused_c == pytest.approx((0.6 * 47 + 0.3 * 45) / 0.9)
    assert sensor(snapshot, "PMIC-Die").kind == "other"


def test_a_board_sensor_alone_is_no_processor(tmp_path: Path) -> None:
    snapshot = look(write_zones(tmp_path, {"board-thermal": 25000, "npu-thermal": 60000}))
    assert snapshot.hottest_c is None
    assert snapshot.fused_c == 25.0


@pytest.mark.parametrize(("disk", "processor"), [(0, 3), (3, 0), (2, 10)])
def test_drivers_are_found_by_name_wherever_they_are_numbered(tmp_path: Path, disk: int, processor: int) -> None:
    roots = write_drivers(tmp_path, {disk: ("nvme", 71000), processor: ("cpu_thermal", 52000)})
    assert look(roots).hottest_c == 52.0


def test_a_driver_of_an_old_kernel_keeps_its_files_one_folder_further_down(tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/hwmon/hwmon0/device"
    folder.mkdir(parents=True)
    (folder / "name").write_text("coretemp\n")
    (folder / "temp1_input").write_text("61000\n")
    assert look(write_zones(tmp_path, {}), "generic-x86").hottest_c == 61.0


def test_drivers_count_only_where_no_zone_answers(tmp_path: Path) -> None:
    write_drivers(tmp_path, {0: ("cpu_thermal", 52000)})
    both = look(write_zones(tmp_path, {"cpu-thermal": 60000}))
    assert (both.hottest_c, [temp.name for temp in both.temps]) == (60.0, ["cpu-thermal"])
    lost = look(write_zones(tmp_path, {"cpu-thermal": ""}))
    assert lost.hottest_c == 52.0


def test_whole_degrees_are_understood_and_the_guess_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    zone = only(tmp_path, "cpu_thermal_zone", 65)
    with caplog.at_level(logging.INFO):
        assert [zone.sample() for _ in range(5)] == [65.0] * 5
    assert len(caplog.records) == 1
    assert "whole degrees" in caplog.text


def test_a_unit_that_is_given_is_not_guessed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    zone = only(tmp_path, "cpu_thermal", 65, **{"cpu-thermal": "milli"})
    assert zone.sample() == 0.065
    assert not caplog.records


def test_a_guess_is_given_up_once_a_figure_is_too_large_for_degrees(tmp_path: Path) -> None:
    zone = only(tmp_path, "cpu-thermal", 65)
    assert zone.sample() == 65.0
    write_zones(tmp_path, {"cpu-thermal": 51000})
    assert zone.sample() == 51.0
    write_zones(tmp_path, {"cpu-thermal": 100})
    assert zone.sample() == 0.1


def test_what_a_driver_says_is_never_guessed(tmp_path: Path) -> None:
    (found,) = find_sensors(write_drivers(tmp_path, {0: ("cpu_thermal", 65)}))
    assert found.sample() == 0.065


@pytest.mark.parametrize("text", ["", "hot", "0", "999999999", "131000", "-41000", "-274000"])
def test_what_no_chip_can_be_is_no_sample(tmp_path: Path, text: str) -> None:
    with pytest.raises(NoSample):
        only(tmp_path, "cpu-thermal", text).sample()


@pytest.mark.parametrize("milli", [-20000, 1500, 125000])
def test_what_a_chip_can_be_is_one(tmp_path: Path, milli: int) -> None:
    assert only(tmp_path, "cpu-thermal", milli).sample() == milli / 1000


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cpu_thermal", "cpu"),
        ("x86_pkg_temp", "cpu"),
        ("cpu-0-0-usr", "cpu"),
        ("mtktscpu", "cpu"),
        ("tj-thermal", "cpu"),
        ("k10temp", "cpu"),
        ("gpu-thermal", "gpu"),
        ("npu_thermal", "npu"),
        ("battery", "battery"),
        ("BAT0", "battery"),
        ("skin-therm", "case"),
        ("gpu-skin", "case"),
        ("pm8150-tz", "other"),
        ("iwlwifi_1", "other"),
        ("nvme", "other"),
        ("center-thermal", "other"),
        ("rp1_adc", "other"),
    ],
)
def test_names_tell_where_a_sensor_sits(name: str, kind: SensorKind) -> None:
    assert kind_of(name) == kind
