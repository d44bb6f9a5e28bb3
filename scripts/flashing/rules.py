"""Whether a disk may be written. Pure: a snapshot in, a refusal or nothing out.

A disk is in use when anything that is mounted, swapped to or built lies on it, however many layers are between: a
partition, LVM, dm-crypt, RAID, a loop device, an overlay, a btrfs of several disks. All of these are followed down
from what is in use, because that is where the kernel says it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from flashing.terms import BlockDevice, FlashError, Mount, Snapshot, readable_bytes

# Where a running system has its own files. `/home` is one only as a whole: people mount cards below it.
_SYSTEM_TREES = ("/boot", "/efi", "/usr", "/var", "/etc", "/opt", "/srv", "/nix", "/gnu", "/sysroot", "/run/live")
_SYSTEM_POINTS = ("/", "/home", "/root", "/tmp", "/cdrom", "/run/initramfs/live", "/run/rootfsbase")
# Not a disk one writes an image to, though the kernel lists it beside the disks: layers, memory, parts of an eMMC.
_LAYERS = re.compile(r"(dm-|md|zram|ram|nbd|bcache|drbd|sr|fd)\d|mmcblk\d+(boot\d|rpmb|gp\d)")


@dataclass(frozen=True)
class Use:
    """Something that lies on a disk: `where` is a mount point, the swap device or the layer's name."""

    kind: str  # mount, swap, layer
    device: str
    where: str
    system: bool

    def __str__(self) -> str:
        if self.kind == "mount":
            return f"/dev/{self.device} is mounted at {self.where}"
        if self.kind == "swap":
            return f"{self.where} is swap space in use"
        return f"/dev/{self.device} is in use by {self.where}"


@dataclass(frozen=True)
class Wish:
    """What the user asked for. `image_bytes` is None while it is not known yet."""

    image_bytes: int | None = None
    unmount: bool = False
    fixed: bool = False


def device_named(snapshot: Snapshot, name: str) -> BlockDevice | None:
    return next((device for device in snapshot.devices if device.name == name), None)


def candidates(snapshot: Snapshot) -> list[BlockDevice]:
    """The disks to choose from: removable, with something in the reader, and not what the system runs from."""
    return [
        device
        for device in snapshot.devices
        if device.removable
        and not device.parent
        and device.size_bytes
        and not _LAYERS.match(device.name)
        and not any(use.system for use in uses(snapshot, device.name))
    ]


def partitions_of(snapshot: Snapshot, disk: str) -> list[BlockDevice]:
    return [device for device in snapshot.devices if device.parent == disk]


def uses(snapshot: Snapshot, disk: str) -> list[Use]:
    """Everything that lies on `disk`, what the system needs first."""
    found: list[Use] = []
    explained: set[str] = set()
    for mount in snapshot.mounts:
        for device in _devices_of_mount(snapshot, mount):
            way = _way_down(snapshot, device)
            if disk in way:
                found.append(Use("mount", device, mount.point, _is_system(mount.point)))
                explained |= way
    for swap in snapshot.swaps:
        for device in _devices_of_swap(snapshot, swap):
            way = _way_down(snapshot, device)
            if disk in way:
                found.append(Use("swap", device, swap, system=True))
                explained |= way
    for device_above in snapshot.devices:
        name = device_above.name
        if name not in explained and not device_above.parent and disk in _way_down(snapshot, name) - {name}:
            below = next(iter(_directly_below(snapshot, device_above)), disk)
            title = f"{name} ({device_above.title})" if device_above.title else name
            found.append(Use("layer", below, title, system=False))
    unique = list(dict.fromkeys(found))
    return sorted(unique, key=lambda use: not use.system)


def refusal(snapshot: Snapshot, name: str, wish: Wish) -> FlashError | None:
    """Why `name` must not be written, or None. Nothing has been written then."""
    device = device_named(snapshot, name)
    if device is None:
        return FlashError(f"The kernel lists no disk {name}", "scripts/flash IMAGE lists what can be written to.")
    if device.parent:
        return FlashError(
            f"{device.path} is a partition of /dev/{device.parent}, and an image needs the whole disk",
            f"Name /dev/{device.parent}, if that is the one.",
        )
    if _LAYERS.match(name):
        title = f" ({device.title})" if device.title else ""
        return FlashError(
            f"{device.path}{title} is not a disk but made from others, from memory or a part of one",
            "scripts/flash IMAGE lists what can be written to.",
        )
    in_use = uses(snapshot, name)
    if in_use and in_use[0].system:
        return FlashError(
            f"{device.path} is a disk that this system runs from: {in_use[0]}",
            "It is never written. Name another one.",
        )
    if not device.size_bytes:
        return FlashError(f"There is no card in {device.path}", "Push it in until it clicks, or try another reader.")
    if device.read_only:
        return FlashError(
            f"{device.path} is read-only",
            "Slide the lock switch at the card's (or its adapter's) side away from LOCK.",
        )
    for use in in_use:
        if use.kind == "layer":
            return FlashError(
                f"{device.path}: {use}",
                "Take that apart first: vgchange --activate n (LVM), cryptsetup close, mdadm --stop (RAID).",
            )
    mounted = [use for use in in_use if use.kind == "mount"]
    if mounted and not wish.unmount:
        return FlashError("; ".join(map(str, mounted)), "Unmount it, or let this program do so: --unmount")
    if wish.image_bytes is not None and wish.image_bytes > device.size_bytes:
        return FlashError(
            f"{device.path} is too small: it has {readable_bytes(device.size_bytes)} ({device.size_bytes} bytes), "
            f"the image needs {readable_bytes(wish.image_bytes)} ({wish.image_bytes} bytes)",
            "Take a larger card.",
        )
    if not device.removable and not wish.fixed:
        return FlashError(
            f"{device.path} ({device.model or 'no model named'}) is built in, not removable",
            "If it is the right one all the same: --fixed",
        )
    return None


def to_unmount(snapshot: Snapshot, disk: str) -> list[str]:
    """The mount points to give up, the deepest first."""
    points = {use.where for use in uses(snapshot, disk) if use.kind == "mount" and not use.system}
    return sorted(points, key=lambda point: (-point.count("/"), point))


def _is_system(point: str) -> bool:
    below = any(point == tree or point.startswith(f"{tree}/") for tree in _SYSTEM_TREES)
    return below or point in _SYSTEM_POINTS


def _way_down(snapshot: Snapshot, name: str) -> set[str]:
    """The device and everything that it lies on."""
    way: set[str] = set()
    ahead = [name]
    while ahead:
        device = device_named(snapshot, ahead.pop())
        if device is not None and device.name not in way:
            way.add(device.name)
            ahead.extend(_directly_below(snapshot, device))
    return way


def _directly_below(snapshot: Snapshot, device: BlockDevice) -> Iterator[str]:
    if device.parent:
        yield device.parent
    for other in snapshot.devices:
        if device.name in other.holders:
            yield other.name
    if device.backing_file:
        # `snapshot.mounts` may lead back here: a file system in a file on itself is not possible, so no circle.
        yield from _devices_of_path(snapshot, device.backing_file)


def _devices_of_mount(snapshot: Snapshot, mount: Mount, seen: tuple[Mount, ...] = ()) -> set[str]:
    """The devices that a mounted file system is on; none for one without a disk."""
    if mount in seen:
        return set()
    found = {device.name for device in snapshot.devices if device.number == mount.number}
    if not found:
        # btrfs has numbers of its own, and names its device as the one who mounted it did.
        found = _devices_by_path(snapshot, mount.source)
    for pool in snapshot.pools:
        if found & pool:
            found |= pool
    if mount.kind == "overlay":
        for option in mount.options:
            key, _, value = option.partition("=")
            if key in {"lowerdir", "lowerdir+", "datadir+", "upperdir"}:
                for path in value.split(":"):
                    found |= _devices_of_path(snapshot, path, (*seen, mount))
    return found


def _devices_of_path(snapshot: Snapshot, path: str, seen: tuple[Mount, ...] = ()) -> set[str]:
    """The devices of the file system that `path` lies on."""
    covering: Mount | None = None
    for mount in snapshot.mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        # Of two at the same point the later one is seen.
        if inside and mount not in seen and (covering is None or len(mount.point) >= len(covering.point)):
            covering = mount
    return _devices_of_mount(snapshot, covering, seen) if covering else set()


def _devices_of_swap(snapshot: Snapshot, swap: str) -> set[str]:
    return _devices_by_path(snapshot, swap) or _devices_of_path(snapshot, swap)


def _devices_by_path(snapshot: Snapshot, path: str) -> set[str]:
    return {
        device.name
        for device in snapshot.devices
        if path == device.path or (device.title and path == f"/dev/mapper/{device.title}")
    }
