"""Which devices there are, from sysfs alone: also where there is no udev, and below any root."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from magnitude.board.device_event import WATCHED, Device, is_watched, telling
from magnitude.board.roots import HostRoots, read_text


def list_devices(roots: HostRoots) -> list[Device]:
    """All devices that are watched. Reads a file of each, so a driver that does not answer holds it up."""
    top = roots.sys.resolve()
    found = []
    for subsystem in WATCHED:
        for entry in _entries(roots.sys, subsystem):
            device = _device(top, subsystem, entry)
            if device is not None:
                found.append(device)
    return found


def _entries(sys: Path, subsystem: str) -> Iterator[Path]:
    """A subsystem is a class or a bus."""
    for folder in (sys / "class" / subsystem, sys / "bus" / subsystem / "devices"):
        try:
            yield from sorted(folder.iterdir())
        except OSError:
            continue


def _device(top: Path, subsystem: str, entry: Path) -> Device | None:
    try:
        folder = entry.resolve(strict=True)
        path = f"/{folder.relative_to(top)}"
    except (OSError, ValueError):  # it went while we looked, or leads out of sysfs
        return None
    if not folder.is_dir():  # `drm` has a file beside its devices
        return None
    properties: dict[str, str] = {}
    for line in (read_text(folder / "uevent") or "").splitlines():
        name, _, value = line.partition("=")
        properties[name] = value
    if subsystem == "cpu":
        online = read_text(folder / "online")
        if online is not None:
            properties["ONLINE"] = online
    if not is_watched(subsystem, entry.name, properties):
        return None
    return Device(path=path, subsystem=subsystem, name=entry.name, properties=telling(properties))
