"""The words that the parts of `scripts/flash` share."""

from __future__ import annotations

from dataclasses import dataclass

# Exit statuses, beside 0 and argparse's 2.
REFUSED = 1  # nothing was written
UNUSABLE = 3  # writing began and failed: the card holds nothing that can be booted
DIFFERENT = 4  # everything was written, and something else was read back
WITHOUT_FILES = 5  # the image is on the card and right; the files of the user are not
INTERRUPTED = 130  # by Ctrl-C or a signal

# What is written, read back and compared at a time. Erase blocks of cards are 4 MiB and smaller powers of two, so no
# card has to rewrite what it has just been given.
PIECE_BYTES = 4 << 20


class FlashError(Exception):
    """What went wrong, what the user can do about it (`hint`), and the exit status that says which kind it is."""

    def __init__(self, message: str, hint: str, status: int = REFUSED) -> None:
        super().__init__(message)
        self.hint = hint
        self.status = status


@dataclass(frozen=True)
class BlockDevice:
    """A disk, a partition or what is built from them, as the kernel lists it.

    `parent` is the disk of a partition. `holders` are built on top of this device (LVM, dm-crypt, RAID). `title` is
    what the device mapper calls it. `backing_file` is what a loop device shows. `label` is the name of the file
    system on it, or of the partition.
    """

    name: str
    number: str
    size_bytes: int
    parent: str = ""
    holders: tuple[str, ...] = ()
    removable: bool = False
    read_only: bool = False
    model: str = ""
    title: str = ""
    backing_file: str = ""
    label: str = ""

    @property
    def path(self) -> str:
        return f"/dev/{self.name}"


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo; `options` are the file system's own (those of an overlay name its folders)."""

    number: str
    point: str
    kind: str
    source: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """All that is asked before a disk is touched. `swaps` are devices or files; `pools` are the members of btrfs
    file systems of several disks, of which mountinfo names only one."""

    devices: tuple[BlockDevice, ...] = ()
    mounts: tuple[Mount, ...] = ()
    swaps: tuple[str, ...] = ()
    pools: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True)
class Extent:
    """A part of the image and the checksum that it must have on the card."""

    offset_bytes: int
    size_bytes: int
    algorithm: str
    digest: str


def readable_bytes(size_bytes: float) -> str:
    """As it is printed on cards: powers of ten."""
    for unit in ("B", "kB", "MB"):
        if size_bytes < 999.5:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} GB"
