from __future__ import annotations

from pathlib import Path

from kernel_trees import write_tree
from magnitude.board.device_list import list_devices
from magnitude.board.roots import HostRoots

TREE = {
    "sys/devices/system/cpu/cpu0/uevent": "DRIVER=processor",
    "sys/devices/system/cpu/cpu1/uevent": "DRIVER=processor",
    "sys/devices/system/cpu/cpu1/online": 1,
    "sys/devices/platform/charger/power_supply/battery/uevent": (
        "POWER_SUPPLY_NAME=battery\nPOWER_SUPPLY_STATUS=Discharging\nPOWER_SUPPLY_VOLTAGE_NOW=3812000"
    ),
    "sys/devices/virtual/thermal/thermal_zone0/uevent": "",
    "sys/devices/virtual/misc/fuse/uevent": "MAJOR=10",
    "sys/devices/platform/npu/misc/rknpu/uevent": "MAJOR=10",
    "sys/devices/usb1/1-1/uevent": "DEVTYPE=usb_device",
    "sys/devices/usb1/1-1/1-1:1.0/uevent": "DEVTYPE=usb_interface",
}
LINKS = {
    "bus/cpu/devices/cpu0": "devices/system/cpu/cpu0",
    "bus/cpu/devices/cpu1": "devices/system/cpu/cpu1",
    "class/power_supply/battery": "devices/platform/charger/power_supply/battery",
    "class/thermal/thermal_zone0": "devices/virtual/thermal/thermal_zone0",
    "class/misc/fuse": "devices/virtual/misc/fuse",
    "class/misc/rknpu": "devices/platform/npu/misc/rknpu",
    "bus/usb/devices/1-1": "devices/usb1/1-1",
    "bus/usb/devices/1-1:1.0": "devices/usb1/1-1/1-1:1.0",
}


def board(root: Path) -> HostRoots:
    roots = write_tree(root, TREE)
    for link, target in LINKS.items():
        place = roots.sys / link
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(roots.sys / target)
    return roots


def test_devices_are_found_by_class_and_by_bus(tmp_path: Path) -> None:
    found = {device.name: device for device in list_devices(board(tmp_path))}
    assert sorted(found) == ["1-1", "battery", "cpu0", "cpu1", "rknpu", "thermal_zone0"]
    assert found["battery"].path == "/devices/platform/charger/power_supply/battery"
    assert found["battery"].properties == {"POWER_SUPPLY_STATUS": "Discharging"}
    assert found["cpu1"].properties == {"DRIVER": "processor", "ONLINE": "1"}


def test_a_device_that_goes_while_we_look_is_left_out(tmp_path: Path) -> None:
    roots = board(tmp_path)
    (roots.sys / "class/thermal/thermal_zone1").symlink_to(roots.sys / "devices/virtual/thermal/thermal_zone1")
    assert "thermal_zone1" not in {device.name for device in list_devices(roots)}


def test_a_driver_that_answers_with_an_error_hides_nothing_else(tmp_path: Path) -> None:
    roots = board(tmp_path)
    uevent = roots.sys / "devices/platform/charger/power_supply/battery/uevent"
    uevent.unlink()
    uevent.symlink_to("/proc/self/mem")  # reading it gives EIO
    found = {device.name: device for device in list_devices(roots)}
    assert found["battery"].properties == {}
    assert "rknpu" in found


def test_a_machine_without_any_of_it_has_no_devices(tmp_path: Path) -> None:
    assert list_devices(HostRoots.under(tmp_path)) == []
