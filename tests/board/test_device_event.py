from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.board.device_event import (
    Device,
    DeviceEvent,
    by_path,
    differences,
    is_watched,
    learned,
    telling,
)

BATTERY = Device(
    path="/devices/platform/charger/power_supply/battery",
    subsystem="power_supply",
    name="battery",
    properties={"POWER_SUPPLY_STATUS": "Charging"},
)
CPU3 = Device(path="/devices/system/cpu/cpu3", subsystem="cpu", name="cpu3", properties={"ONLINE": "1"})
NPU = Device(path="/devices/platform/fdab0000.npu/accel/accel0", subsystem="accel", name="accel0")

paths = st.sampled_from([f"/devices/{letter}" for letter in "abcdef"])
devices = st.builds(
    Device,
    path=paths,
    subsystem=st.sampled_from(["cpu", "power_supply", "usb"]),
    name=st.just("device"),
    properties=st.dictionaries(st.sampled_from(["ONLINE", "POWER_SUPPLY_STATUS"]), st.sampled_from("01")),
)
sets = st.lists(devices, max_size=6).map(by_path)


@given(sets, sets)
def test_what_differs_leads_from_one_look_to_the_other(before: dict[str, Device], after: dict[str, Device]) -> None:
    assert functools.reduce(learned, differences(before, after), before) == after


@given(sets)
def test_two_looks_at_the_same_devices_differ_in_nothing(seen: dict[str, Device]) -> None:
    assert differences(seen, dict(seen)) == []


@given(sets, sets)
def test_what_differs_was_told_by_nobody(before: dict[str, Device], after: dict[str, Device]) -> None:
    assert all(event.found for event in differences(before, after))


def changed(before: Device, **properties: str) -> list[str]:
    after = Device(path=before.path, subsystem=before.subsystem, name=before.name, properties=properties)
    return [event.action for event in differences(by_path([before]), by_path([after]))]


def test_a_processor_goes_off_line_and_comes_back() -> None:
    assert changed(CPU3, ONLINE="0") == ["offline"]
    offline = Device(path=CPU3.path, subsystem="cpu", name="cpu3", properties={"ONLINE": "0"})
    assert changed(offline, ONLINE="1") == ["online"]


def test_a_battery_that_is_unplugged_has_changed() -> None:
    assert changed(BATTERY, POWER_SUPPLY_STATUS="Discharging") == ["change"]


def test_devices_that_went_come_before_those_that_came() -> None:
    events = differences(by_path([NPU]), by_path([BATTERY, CPU3]))
    assert [(event.action, event.name) for event in events] == [
        ("remove", "accel0"),
        ("add", "battery"),
        ("add", "cpu3"),
    ]


def test_removing_what_is_not_known_changes_nothing() -> None:
    event = DeviceEvent(action="remove", subsystem="usb", name="1-1", path="/devices/usb1/1-1")
    assert learned(by_path([CPU3]), event) == by_path([CPU3])


@pytest.mark.parametrize(
    ("subsystem", "name", "device_type", "watched"),
    [
        ("misc", "rknpu", "", True),
        ("misc", "fuse", "", False),
        ("usb", "1-1", "usb_device", True),
        ("usb", "1-1:1.0", "usb_interface", False),
        ("drm", "renderD129", "drm_minor", True),
        ("drm", "card0-HDMI-A-1", "drm_connector", False),
        ("video4linux", "video0", "", True),
        ("block", "sda", "disk", False),
    ],
)
def test_only_devices_that_matter_are_watched(subsystem: str, name: str, device_type: str, watched: bool) -> None:
    assert is_watched(subsystem, name, {"DEVTYPE": device_type}) is watched


def test_figures_that_move_all_the_time_do_not_tell_devices_apart() -> None:
    assert telling({"POWER_SUPPLY_VOLTAGE_NOW": "3812000", "POWER_SUPPLY_STATUS": "Full"}) == {
        "POWER_SUPPLY_STATUS": "Full"
    }
