"""Gives the data partition the rest of the card while it is mounted, and its file system the partition."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from magnitude.board.roots import HostRoots, read_int
from magnitude.errors import MagnitudeError
from magnitude.firstboot.boot_partition import MOUNTS, Run, mount_at
from magnitude.firstboot.data_partition import DATA, Grow, Leave, decide
from magnitude.units.host import HostCommandFailed, output_of

DATA_MOUNT = Path("/data")
# sysfs counts in these, whatever the disk's own sectors are.
_SYSFS_SECTOR_BYTES = 512
# A file system on a card of 1 TB grows for tens of seconds, on a slow card for some times as long. Less than the unit
# gives it (TimeoutStartSec=), so that it is this that says what took too long.
GROW_S = 540.0
_GROWFS = (Path("/usr/lib/systemd/systemd-growfs"), Path("/lib/systemd/systemd-growfs"))

# Runs sfdisk with a text on its standard input; what it prints. Raises `GrowFailed`.
Sfdisk = Callable[[Sequence[str], str], str]


class GrowFailed(MagnitudeError):
    """The data partition could not be grown. What is on it is untouched."""

    code = "data_partition_not_grown"


def run_sfdisk(arguments: Sequence[str], text: str = "") -> str:
    try:
        return output_of(("sfdisk", *arguments), given=text)
    except HostCommandFailed as error:
        missing = shutil.which("sfdisk") is None
        hint = "It comes with util-linux (Debian: the package fdisk)" if missing else ""
        raise GrowFailed(error.message, hint=hint) from error


def grow_table(disk: str, disk_bytes: int, sfdisk: Sfdisk = run_sfdisk) -> Grow | Leave:
    """Change the table of `disk`, a device or an image, if that is to be done; what was decided. Raises `GrowFailed`.

    A cut while it is written leaves the old table or the new one: MBR is one sector, and GPT has two copies.
    """
    decision = decide(sfdisk(("--json", disk), ""), disk_bytes)
    if isinstance(decision, Leave):
        return decision
    # The disk is in use, so the kernel cannot read the table anew as a whole; it is told of the one partition after.
    quiet = ("--no-reread", "--no-tell-kernel", "--force", "--wipe", "never", "--wipe-partitions", "never")
    if decision.relocate:
        sfdisk(("--no-reread", "--no-tell-kernel", "--relocate", "gpt-bak-std", disk), "")
    # Only the size is named: start, type, name and identifier stay.
    sfdisk((*quiet, "-N", str(decision.number), disk), f"size={decision.size_sectors}\n")
    left = decide(sfdisk(("--json", disk), ""), disk_bytes)
    if isinstance(left, Grow) or left.refused:
        raise GrowFailed(f"the table of {disk} is not what was written", hint="Look at it: sfdisk --list")
    return decision


def grow_data(
    mount_point: Path = DATA_MOUNT,
    *,
    run: Run,
    roots: HostRoots | None = None,
    mountinfo: Path = MOUNTS,
    sfdisk: Sfdisk = run_sfdisk,
) -> str:
    """Grow the partition that is mounted at `mount_point`; a sentence about what was done. Raises `GrowFailed`.

    The mount says which device it is: two cards with our image in one board have the same identifiers.
    """
    roots = roots or HostRoots()
    mount = mount_at(mount_point, mountinfo)
    if mount is None:
        raise GrowFailed(f"no partition is mounted at {mount_point}")
    partition = (roots.sys / "dev/block" / mount.device).resolve()
    disk = partition.parent
    sectors = read_int(disk / "size")
    if read_int(partition / "partition") != DATA or sectors is None:
        raise GrowFailed(f"{partition.name}, mounted at {mount_point}, is not partition {DATA} of a disk")
    decision = grow_table(f"/dev/{disk.name}", sectors * _SYSFS_SECTOR_BYTES, sfdisk)
    if isinstance(decision, Leave) and decision.refused:
        raise GrowFailed(decision.why, hint="The device works with the space that it has")
    # Both do nothing when they have been done, so a boot that was cut off here is made good by the next one.
    _must(
        run(("partx", "--update", "--nr", str(DATA), f"/dev/{disk.name}")), "the kernel was not told of the new size"
    )
    growfs = next((str(path) for path in _GROWFS if path.exists()), "systemd-growfs")
    _must(run((growfs, str(mount_point))), "the file system was not grown")
    if isinstance(decision, Leave):
        return decision.why
    return f"the data partition was grown to {decision.size_sectors} sectors"


def _must(failure: str | None, what: str) -> None:
    if failure is not None:
        raise GrowFailed(f"{what}: {failure}")
