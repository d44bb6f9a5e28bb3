"""Writes the kernel's files about disks, mounts and swap, as far as `scripts/flash` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flashing.block_devices import Roots, read_snapshot
from flashing.terms import Snapshot

GB = 1000**3
USB = "pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0"
SATA = "pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0"
MMC = "platform/soc/fe320000.mmc/mmc_host/mmc1/mmc1:aaaa"
VIRTUAL = "virtual"


class Machine:
    """A machine below a folder. Disks first, then what is on them."""

    def __init__(self, root: Path) -> None:
        self.roots = Roots(root / "sys", root / "proc", root / "dev")
        for folder in ("sys/class/block", "proc/self", "dev/disk/by-label"):
            (root / folder).mkdir(parents=True)
        self.write(root / "proc/swaps", "Filename\tType\tSize\tUsed\tPriority")
        self.write(root / "proc/self/mountinfo", "22 1 0:21 / /sys rw,nosuid - sysfs sysfs rw")
        self._minor = 0

    def disk(
        self,
        name: str,
        *,
        at: str = USB,
        size_bytes: int = 32 * GB,
        model: str = "Ultra",
        removable: int = 0,
        read_only: int = 0,
    ) -> str:
        folder = self.roots.sys / "devices" / at / "block" / name
        self.write(folder / "removable", removable)
        self.write(folder / "device/model", f"{model}   ")
        self._add(folder, name, size_bytes, read_only)
        return name

    def partition(self, disk: str, name: str, *, size_bytes: int = GB, label: str = "") -> str:
        folder = (self.roots.sys / "class/block" / disk).resolve() / name
        self.write(folder / "partition", 1)
        self._add(folder, name, size_bytes, 0)
        if label:
            (self.roots.dev / "disk/by-label" / label).symlink_to(f"../../{name}")
        return name

    def layer(self, name: str, on: Sequence[str], *, title: str = "") -> str:
        """A device that is made from others: device mapper, RAID."""
        folder = self.roots.sys / "devices" / VIRTUAL / "block" / name
        if title:
            self.write(folder / "dm/name", title)
        self._add(folder, name, GB, 0)
        for below in on:
            (self.roots.sys / "class/block" / below).resolve().joinpath("holders", name).mkdir()
        return name

    def loop(self, name: str, file: str) -> str:
        folder = self.roots.sys / "devices" / VIRTUAL / "block" / name
        self.write(folder / "loop/backing_file", file)
        self._add(folder, name, GB, 1)
        return name

    def number(self, name: str) -> str:
        return (self.roots.sys / "class/block" / name / "dev").read_text().strip()

    def mount(self, device: str, point: str, *, kind: str = "ext4", options: str = "rw") -> None:
        """`device` is a name from above, or what stands there for a file system without a device."""
        listed = (self.roots.sys / "class/block" / device).exists()
        number, source = (self.number(device), f"/dev/{device}") if listed else ("0:99", device)
        point = point.replace(" ", "\\040")
        with (self.roots.proc / "self/mountinfo").open("a") as file:
            file.write(f"30 22 {number} / {point} rw,relatime shared:1 - {kind} {source} {options}\n")

    def swap(self, path: str) -> None:
        with (self.roots.proc / "swaps").open("a") as file:
            file.write(f"{path}\tpartition\t1048572\t0\t-2\n")

    def pool(self, *devices: str) -> None:
        """A btrfs of several disks."""
        for device in devices:
            (self.roots.sys / "fs/btrfs/2f6c/devices" / device).mkdir(parents=True)

    def snapshot(self) -> Snapshot:
        return read_snapshot(self.roots)

    def write(self, path: Path, text: str | int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def _add(self, folder: Path, name: str, size_bytes: int, read_only: int) -> None:
        self._minor += 1
        self.write(folder / "dev", f"8:{self._minor}")
        self.write(folder / "size", size_bytes // 512)
        self.write(folder / "ro", read_only)
        (folder / "holders").mkdir()
        (self.roots.sys / "class/block" / name).symlink_to(folder)
        (self.roots.dev / name).touch()
