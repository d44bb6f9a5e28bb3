"""Partitions in the first bytes of a disk, and which of them is the FAT file system that other computers can write.

Formats: UEFI specification 2.10, chapter 5 (GPT and MBR); Microsoft's FAT specification 1.03 (the boot sector).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

SECTOR_BYTES = 512
_PROTECTIVE = 0xEE  # the one MBR partition of a disk with a GPT
BOOT_LABEL = "MAGBOOT"  # of the partition that our images keep their `magnitude/` folder on


@dataclass(frozen=True)
class Partition:
    number: int
    start_bytes: int
    size_bytes: int


def find_partitions(head: bytes) -> list[Partition]:
    """The partitions that the table in `head` names; none when there is no table. Logical ones of an extended MBR
    partition lie within that one, which is listed."""
    if len(head) < SECTOR_BYTES or head[510:512] != b"\x55\xaa":
        return []
    entries = [struct.unpack_from("<4xB3xII", head, 446 + 16 * index) for index in range(4)]
    if any(kind == _PROTECTIVE for kind, _, _ in entries):
        return _gpt(head)
    return [
        Partition(index + 1, start * SECTOR_BYTES, sectors * SECTOR_BYTES)
        for index, (kind, start, sectors) in enumerate(entries)
        if kind and sectors
    ]


def find_boot_partition(partitions: list[Partition], read: Callable[[int, int], bytes]) -> Partition | None:
    """The FAT file system called `BOOT_LABEL`, or else the first FAT file system. `read` gets offset and size."""
    found: Partition | None = None
    for partition in partitions:
        is_fat, label = _fat(read(partition.start_bytes, SECTOR_BYTES))
        if is_fat and label == BOOT_LABEL:
            return partition
        if is_fat and found is None:
            found = partition
    return found


def _gpt(head: bytes) -> list[Partition]:
    header = head[SECTOR_BYTES : 2 * SECTOR_BYTES]
    if header[:8] != b"EFI PART":
        return []
    table, count, size = struct.unpack_from("<QII", header, 72)
    partitions = []
    for index in range(min(count, 128)):
        entry = head[table * SECTOR_BYTES + index * size :][:size]
        if len(entry) < 48 or not any(entry[:16]):
            continue
        first, last = struct.unpack_from("<QQ", entry, 32)
        partitions.append(Partition(index + 1, first * SECTOR_BYTES, (last - first + 1) * SECTOR_BYTES))
    return partitions


def _fat(sector: bytes) -> tuple[bool, str]:
    if sector[510:512] != b"\x55\xaa":
        return False, ""
    if sector[82:87] == b"FAT32":
        return True, sector[71:82].decode("ascii", "replace").strip()
    if sector[54:59] in {b"FAT12", b"FAT16"}:
        return True, sector[43:54].decode("ascii", "replace").strip()
    return False, ""
