"""When the power fails in a recorded update: while a slot is written, and beside what decides which one is booted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

from power_cut import Request
from tested_image import DATA_MIB, SLOT_MIB

from image.guest.partitions import MIB, layout, offsets

# What is written into the boot loader's environment, on the boot partition, decides which slot is booted: the power
# fails on both sides of the last six of these writes (A confirmed, B being written, B whole, B tried, B confirmed
# among them).
CUTS_WHILE_WRITING, CUTS_BESIDE_DECISIONS = 8, 12
ENVIRONMENT = b"# GRUB Environment Block"


class Recording(NamedTuple):
    """A disk as the image has it, everything that was written to it, and which of that belongs to the update."""

    base: Path
    requests: list[Request]
    begin: int


def partition_of(request: Request) -> str:
    """The partition that a request writes to; "" for none."""
    partitions = layout(SLOT_MIB * MIB, DATA_MIB * MIB)
    begin = offsets(partitions)
    for one in partitions:
        if request.data and begin[one.name] <= request.offset < begin[one.name] + one.size_bytes:
            return one.name
    return ""


def decides(request: Request) -> bool:
    """Whether a request writes the boot loader's environment: where that lies, and not where its form is only spoken
    of, as in a program of the slot that is being written."""
    return partition_of(request) == "boot" and request.data.startswith(ENVIRONMENT)


def moments(recording: Recording, rng: random.Random) -> list[int]:
    """Numbers of the requests before which the power fails, in rising order."""
    numbers = range(len(recording.requests))
    decisions = [at for at in numbers if decides(recording.requests[at])]
    beside = sorted({moment for at in decisions for moment in (at, at + 1)})
    in_slot = {at for at in numbers[recording.begin :] if partition_of(recording.requests[at]) == "root-b"}
    writing = sorted(in_slot - set(beside))
    chosen = set(rng.sample(writing, CUTS_WHILE_WRITING))
    # From the end: what the update decides comes after what the first boot did.
    chosen |= set(beside[-CUTS_BESIDE_DECISIONS:])
    return sorted(chosen)
