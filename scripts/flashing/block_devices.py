"""Reading what the kernel says about disks, mounts and swap. The roots are parameters; nothing is decided here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from flashing.terms import BlockDevice, Mount, Snapshot

SECTOR_BYTES = 512  # the unit of `size` in sysfs, whatever the disk's own sectors are


@dataclass(frozen=True)
class Roots:
    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")


def read_snapshot(roots: Roots) -> Snapshot:
    """The machine now. What cannot be read is taken for not there; a disk that is in use nevertheless is found out
    when the kernel refuses to open it exclusively."""
    labels = _labels(roots.dev)
    folder = roots.sys / "class/block"
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return Snapshot(
        devices=tuple(_device(folder / name, labels.get(name, "")) for name in names),
        mounts=parse_mounts(_text(roots.proc / "self/mountinfo")),
        swaps=parse_swaps(_text(roots.proc / "swaps")),
        pools=_pools(roots.sys / "fs/btrfs"),
    )


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """The lines of /proc/self/mountinfo (proc_pid_mountinfo(5))."""
    mounts = []
    for line in text.splitlines():
        fields, separator, rest = line.partition(" - ")
        left, right = fields.split(" "), rest.split(" ")
        if separator and len(left) >= 6 and len(right) >= 2:
            options = tuple(_unescaped(right[2]).split(",")) if len(right) > 2 else ()
            mounts.append(Mount(left[2], _unescaped(left[4]), right[0], _unescaped(right[1]), options))
    return tuple(mounts)


def parse_swaps(text: str) -> tuple[str, ...]:
    """The first column of /proc/swaps, below its heading."""
    return tuple(_unescaped(line.split()[0]) for line in text.splitlines()[1:] if line.strip())


def _device(entry: Path, label: str) -> BlockDevice:
    place = entry.resolve()
    # A partition's folder lies in its disk's, which is where most of the facts stand.
    disk = place.parent if (place / "partition").exists() else place
    return BlockDevice(
        name=entry.name,
        number=_text(entry / "dev"),
        size_bytes=int(_text(entry / "size") or 0) * SECTOR_BYTES,
        parent=disk.name if disk != place else "",
        holders=tuple(sorted(holder.name for holder in _entries(entry / "holders"))),
        # Card readers in laptops and USB disks call themselves fixed.
        removable=(_text(disk / "removable") == "1" or "/usb" in str(disk) or _text(disk / "device/type") == "SD"),
        read_only=_text(entry / "ro") == "1" or _text(disk / "ro") == "1",
        model=" ".join(
            part
            for part in (_text(disk / "device/vendor"), _text(disk / "device/model") or _text(disk / "device/name"))
            # The vendor's field of some devices is a PCI number.
            if part and not part.startswith("0x")
        ),
        title=_text(entry / "dm/name"),
        backing_file=_text(entry / "loop/backing_file").removesuffix(" (deleted)"),
        label=label,
    )


def _labels(dev: Path) -> dict[str, str]:
    """Names of file systems, or else of partitions, by device; udev keeps links of them."""
    labels: dict[str, str] = {}
    for folder in ("disk/by-partlabel", "disk/by-label"):
        for link in _entries(dev / folder):
            name = re.sub(r"\\x([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), link.name)
            labels[link.resolve().name] = name
    return labels


def _pools(folder: Path) -> tuple[frozenset[str], ...]:
    pools = (frozenset(member.name for member in _entries(pool / "devices")) for pool in _entries(folder))
    return tuple(pool for pool in pools if pool)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _unescaped(text: str) -> str:
    """The kernel writes blanks and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
