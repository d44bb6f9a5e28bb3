from __future__ import annotations

from pathlib import Path

from kernel_trees import write_tree
from magnitude.board.power import PowerReader
from magnitude.board.snapshot import Power

P = "sys/class/power_supply"


def power(root: Path, **supplies: dict[str, str | int]) -> Power:
    tree = {f"{P}/{name}/{file}": content for name, files in supplies.items() for file, content in files.items()}
    return PowerReader(write_tree(root, tree)).read()


def test_a_board_that_tells_nothing_has_an_unknown_supply(tmp_path: Path) -> None:
    assert power(tmp_path) == Power()


def test_a_battery_on_its_charger(tmp_path: Path) -> None:
    found = power(
        tmp_path,
        ac={"type": "Mains", "online": 1},
        bat={"type": "Battery", "present": 1, "status": "Charging", "capacity": 55, "temp": 312},
    )
    assert found == Power(on_mains=True, battery_percent=55.0, discharging=False, battery_temp_c=31.2)


def test_a_battery_that_feeds_the_board(tmp_path: Path) -> None:
    found = power(
        tmp_path,
        usb={"type": "USB", "online": 0},
        bat={"type": "Battery", "status": "Discharging", "capacity": 14},
    )
    assert found == Power(on_mains=False, battery_percent=14.0, discharging=True)


def test_every_name_of_a_usb_supply_is_mains(tmp_path: Path) -> None:
    for number, kind in enumerate(("USB", "USB_C", "USB_PD", "Mains", "Wireless")):
        assert power(tmp_path / str(number), usb={"type": kind, "online": 1}).on_mains is True


def test_a_battery_says_what_no_charger_does(tmp_path: Path) -> None:
    assert power(tmp_path / "a", bat={"type": "Battery", "status": "Discharging"}).on_mains is False
    assert power(tmp_path / "b", bat={"type": "Battery", "status": "Full"}).on_mains is True
    assert power(tmp_path / "c", bat={"type": "Battery", "status": "Not charging"}).on_mains is None
    assert power(tmp_path / "d", bat={"type": "Battery", "status": "Unknown"}).discharging is None


def test_a_mouse_is_no_battery_of_the_board(tmp_path: Path) -> None:
    mouse: dict[str, str | int] = {"type": "Battery", "scope": "Device", "status": "Discharging", "capacity": 3}
    assert power(tmp_path, mouse=mouse) == Power()


def test_a_battery_that_is_not_there_is_none(tmp_path: Path) -> None:
    found = power(tmp_path, bat={"type": "Battery", "present": 0, "status": "Discharging", "capacity": 0})
    assert found == Power()


def test_a_level_that_cannot_be_is_unknown(tmp_path: Path) -> None:
    assert power(tmp_path, bat={"type": "Battery", "capacity": 255}).battery_percent is None
    assert power(tmp_path, bat={"type": "Battery", "capacity": ""}).battery_percent is None


def test_of_several_batteries_the_one_that_feeds_counts(tmp_path: Path) -> None:
    found = power(
        tmp_path,
        full={"type": "Battery", "status": "Full", "capacity": 100},
        used={"type": "Battery", "status": "Discharging", "capacity": 40},
    )
    assert (found.battery_percent, found.discharging) == (40.0, True)


def test_a_supply_that_fails_to_answer_is_unknown(tmp_path: Path) -> None:
    folder = tmp_path / P / "ac"
    folder.mkdir(parents=True)
    (folder / "type").write_text("Mains\n")
    (folder / "online").symlink_to("/proc/self/mem")  # reading fails with EIO
    assert PowerReader(write_tree(tmp_path, {})).read() == Power()
