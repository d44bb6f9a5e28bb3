"""The partitions of an image, by which names everything finds them, and the disk image that has them. GPT."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from image.guest.debian import run
from image.guest.workshop import Workshop

MIB = 1 << 20
DISK_ID = "6d61676e-0001-4000-8000-000000000000"
BOOT_LABEL, DATA_LABEL = "MAGBOOT", "magnitude-data"
# GPT's own copy at the end of the disk takes 33 sectors.
END_BYTES = MIB
# Partitions begin at whole MiB: what flash memory likes, and what every tool does.
FIRST_BYTES = MIB
# The least that is FAT32 for certain: below 65,525 clusters a driver takes it for FAT16.
BOOT_BYTES = 64 * MIB


class Partition(NamedTuple):
    """One partition; `kind` is sfdisk's name of its type."""

    name: str
    number: int
    size_bytes: int
    kind: str

    @property
    def uuid(self) -> str:
        return uuid_of(self.number)


def uuid_of(number: int) -> str:
    """The fixed PARTUUID of the partition with this number."""
    return f"{DISK_ID[:-1]}{number}"


def layout(slot_bytes: int, data_bytes: int) -> list[Partition]:
    """The partitions in their order on the disk; sizes in whole MiB."""
    return [
        Partition("boot", 1, BOOT_BYTES, "uefi"),
        Partition("root-a", 2, slot_bytes, "linux"),
        Partition("root-b", 3, slot_bytes, "linux"),
        Partition("data", 4, data_bytes, "linux"),
    ]


def offsets(partitions: list[Partition]) -> dict[str, int]:
    """Where each partition begins, in bytes."""
    at, found = FIRST_BYTES, {}
    for partition in partitions:
        found[partition.name] = at
        at += partition.size_bytes
    return found


def disk_bytes(partitions: list[Partition]) -> int:
    return FIRST_BYTES + sum(partition.size_bytes for partition in partitions) + END_BYTES


def table(partitions: list[Partition]) -> str:
    """What sfdisk reads."""
    begin = offsets(partitions)
    lines = ["label: gpt", f"label-id: {DISK_ID}", "unit: sectors", "sector-size: 512"]
    for one in partitions:
        start, size = begin[one.name] // 512, one.size_bytes // 512
        lines.append(f"start={start}, size={size}, type={one.kind}, uuid={one.uuid}, name={one.name}")
    return "\n".join(lines) + "\n"


def write_disk(
    workshop: Workshop, folder: Path, disk: str, partitions: list[Partition], parts: dict[str, str]
) -> None:
    """Make `disk` in `folder`, with the file systems in the files `parts` (partition → name of the file) in it.

    A partition without one stays empty. The file is sparse.
    """
    target = folder / disk
    with target.open("wb") as file:
        file.truncate(disk_bytes(partitions))
    (folder / "table").write_text(table(partitions))
    workshop.run(folder, "sh", "-c", f"sfdisk --quiet --no-reread --no-tell-kernel {disk} <table")
    (folder / "table").unlink()
    begin = offsets(partitions)
    for name, part in parts.items():
        run("dd", f"if={folder / part}", f"of={target}", "bs=1M", f"seek={begin[name] // MIB}",
            "conv=notrunc,sparse", "status=none")  # fmt: skip
