"""Whether the data partition can take the rest of the card, and how far. Pure: a partition table as text in.

Only the table that our images have is ever changed: four partitions with our identifiers, data the last on the disk.
MBR (Raspberry Pi) and GPT alike. Sizes are in sectors of the disk.
"""

from __future__ import annotations

import re
from itertools import pairwise

import msgspec

# Fixed in every image; the fourth is data. "magn" in ASCII.
DISK_ID_MBR = "0x6d61676e"
PARTUUIDS_GPT = tuple(f"6D61676E-0001-4000-8000-{number:012d}" for number in (1, 2, 3, 4))
DATA = 4

# Partitions begin and end at whole MiB, as flash wants it and every tool does.
_ALIGN_BYTES = 1 << 20
# UEFI 5.3.1: at the end of the disk lie at least 16 KiB of entries and one sector of header.
_GPT_ENTRIES_BYTES = 16 << 10
# MBR counts sectors in 32 bits.
_MBR_SECTORS_MAX = (1 << 32) - 1


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """As `sfdisk --json` prints one; `uuid` is there for GPT only."""

    node: str
    start: int
    size: int
    uuid: str = ""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """As `sfdisk --json` prints it. `sectorsize` in bytes."""

    label: str
    id: str
    device: str
    unit: str
    partitions: list[Partition] = []
    sectorsize: int = 512


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    partitiontable: Table


class Grow(msgspec.Struct, frozen=True, kw_only=True):
    """Give partition `number` `size_sectors`. `relocate`: GPT's second copy has to move to the end of the disk."""

    number: int
    size_sectors: int
    relocate: bool


class Leave(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing to do, or nothing that may be done: `refused` tells which."""

    why: str
    refused: bool = False


def decide(text: str, disk_bytes: int) -> Grow | Leave:
    """What to do with the disk of `disk_bytes` whose table `sfdisk --json` shows as `text`."""
    try:
        table = msgspec.json.decode(text, type=_Document).partitiontable
    except msgspec.MsgspecError:
        return _refuse("its partition table cannot be read")
    wrong = _not_ours(table)
    if wrong:
        return _refuse(wrong)
    data = _numbered(table)[DATA]
    align = max(_ALIGN_BYTES // table.sectorsize, 1)
    end = disk_bytes // table.sectorsize
    if table.label == "gpt":
        end -= _GPT_ENTRIES_BYTES // table.sectorsize + 1
    else:
        end = min(end, _MBR_SECTORS_MAX)
    if data.start + data.size > disk_bytes // table.sectorsize:
        return _refuse("the data partition reaches beyond the end of the disk")
    size = end // align * align - data.start
    if size <= data.size:
        return Leave(why="the data partition fills the disk")
    return Grow(number=DATA, size_sectors=size, relocate=table.label == "gpt")


def _not_ours(table: Table) -> str:
    """What tells that this is no disk of ours; "" when it is one."""
    if table.unit != "sectors" or table.sectorsize not in (512, 4096):
        return f"its sectors of {table.sectorsize} bytes are none that this is written for"
    numbered = _numbered(table)
    if sorted(numbered) != [1, 2, 3, 4] or len(table.partitions) != 4:
        return "it does not have the four partitions of our images"
    if table.label == "gpt":
        if tuple(numbered[number].uuid.upper() for number in (1, 2, 3, 4)) != PARTUUIDS_GPT:
            return "its partitions do not have the identifiers of our images"
    elif table.label == "dos":
        if table.id.lower() != DISK_ID_MBR:
            return "it does not have the identifier of our images"
    else:
        return f"its table is of a kind ({table.label}) that our images do not have"
    in_order = sorted(table.partitions, key=lambda partition: partition.start)
    if any(one.start + one.size > other.start for one, other in pairwise(in_order)):
        return "its partitions overlap"
    if in_order[-1] != numbered[DATA]:
        return "the data partition is not the last one"
    if any(partition.size <= 0 or partition.start <= 0 for partition in table.partitions):
        return "a partition has no size"
    return ""


def _numbered(table: Table) -> dict[int, Partition]:
    """By number: `/dev/sda4`, `/dev/mmcblk0p4` and a file `card.img4` are all the fourth."""
    separator = "p?" if table.device[-1:].isdigit() else ""
    pattern = re.compile(f"{re.escape(table.device)}{separator}([0-9]+)")
    found = ((pattern.fullmatch(partition.node), partition) for partition in table.partitions)
    return {int(match[1]): partition for match, partition in found if match}


def _refuse(why: str) -> Leave:
    return Leave(why=f"the disk is left as it is: {why}", refused=True)
