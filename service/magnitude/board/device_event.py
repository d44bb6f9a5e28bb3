"""Devices that come, go and change, and what lies between two looks at which there are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

# What decisions here depend on: supply, heat, processors that come and go, accelerators (`accel`, `drm`; vendor
# kernels show the RK3588's as a `misc` device), their clocks, sensors, cameras and what hangs on USB.
WATCHED = (
    "accel",
    "cpu",
    "devfreq",
    "drm",
    "hwmon",
    "misc",
    "power_supply",
    "thermal",
    "usb",
    "video4linux",
)
# A device is the same one as long as these are. The rest of what a driver tells (voltages, counters) moves all the
# time, and whoever wants it samples it.
TELLING = ("DEVTYPE", "DRIVER", "ONLINE", "POWER_SUPPLY_ONLINE", "POWER_SUPPLY_PRESENT", "POWER_SUPPLY_STATUS")


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """`path` is its place below the root of sysfs (`/devices/...`): what tells it from all others. `properties` are
    those of `TELLING` that it has; `ONLINE` is a processor's."""

    path: str
    subsystem: str
    name: str
    properties: dict[str, str] = {}


class DeviceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`action` as the kernel names it: add, remove, change, online, offline, bind, unbind, move. `found`: nobody told
    of it; two looks at which devices there are differed."""

    action: str
    subsystem: str
    name: str
    path: str
    properties: dict[str, str] = {}
    found: bool = False


def is_watched(subsystem: str, name: str, properties: Mapping[str, str]) -> bool:
    """Whether anybody here wants to know of such a device."""
    if subsystem == "misc":
        return "npu" in name
    if subsystem == "usb":
        return properties.get("DEVTYPE") == "usb_device"  # each of its interfaces would tell the same again
    if subsystem == "drm":
        return properties.get("DEVTYPE") == "drm_minor"  # screens are no accelerators
    return subsystem in WATCHED


def telling(properties: Mapping[str, str]) -> dict[str, str]:
    """Those of `properties` that a device is known by."""
    return {name: properties[name] for name in TELLING if name in properties}


def by_path(devices: Iterable[Device]) -> dict[str, Device]:
    return {device.path: device for device in devices}


def differences(before: Mapping[str, Device], after: Mapping[str, Device]) -> list[DeviceEvent]:
    """What must have happened between two looks: first what went, then what came, then what changed."""
    replaced = {path for path in before.keys() & after.keys() if before[path].subsystem != after[path].subsystem}
    gone = sorted((before.keys() - after.keys()) | replaced)
    new = sorted((after.keys() - before.keys()) | replaced)
    same = sorted((before.keys() & after.keys()) - replaced)
    events = [_found("remove", before[path]) for path in gone]
    events += [_found("add", after[path]) for path in new]
    return events + [
        _found(_change(before[path], after[path]), after[path]) for path in same if before[path] != after[path]
    ]


def learned(known: Mapping[str, Device], event: DeviceEvent) -> dict[str, Device]:
    """What is there after `event`."""
    after = dict(known)
    if event.action == "remove":
        after.pop(event.path, None)
    else:
        after[event.path] = Device(
            path=event.path, subsystem=event.subsystem, name=event.name, properties=event.properties
        )
    return after


def _change(before: Device, after: Device) -> str:
    online = after.properties.get("ONLINE")
    if online is None or online == before.properties.get("ONLINE"):
        return "change"
    return "online" if online == "1" else "offline"


def _found(action: str, device: Device) -> DeviceEvent:
    return DeviceEvent(
        action=action,
        subsystem=device.subsystem,
        name=device.name,
        path=device.path,
        properties=device.properties,
        found=True,
    )
