"""Which moments of a recorded update are chosen, on a record of a few requests."""

from __future__ import annotations

import random
from pathlib import Path

from power_cut import Request
from tested_image import DATA_MIB, SLOT_MIB
from update_cuts import (
    CUTS_BESIDE_DECISIONS,
    CUTS_WHILE_WRITING,
    ENVIRONMENT,
    Recording,
    decides,
    moments,
    partition_of,
)

from image.guest.file_systems import FIRST_ENVIRONMENT, environment
from image.guest.partitions import MIB, layout, offsets

PARTITIONS = layout(SLOT_MIB * MIB, DATA_MIB * MIB)
BEGIN = offsets(PARTITIONS)
DECISION = environment(FIRST_ENVIRONMENT)
# Speaks of the form that the boot partition has: the first block of a file in the slot, or of one of the user.
PROGRAM = b"#!/bin/sh\nheader='" + ENVIRONMENT + b"'\n"


def write(partition: str, data: bytes, at: int = 4096) -> Request:
    return Request(BEGIN[partition] + at, data, flush=False, durable=False)


def recorded() -> Recording:
    """A first boot, an update into slot B, and a boot of it; in between what has nothing to do with it."""
    first = [write("boot", DECISION), write("data", b"state"), write("boot", DECISION), write("data", b"more")]
    update = [write("boot", DECISION), *(write("root-b", bytes([number]) * 4096) for number in range(20))]
    update += [write("root-b", PROGRAM), write("root-b", DECISION), write("data", DECISION), write("boot", DECISION)]
    after = [Request(0, b"", flush=True, durable=False), write("boot", PROGRAM), write("boot", DECISION)]
    after += [write("data", PROGRAM), write("boot", DECISION)]
    requests = [*first, *update, *after]
    return Recording(
        Path("nowhere"), requests, next(at for at, one in enumerate(requests) if partition_of(one) == "root-b")
    )


def test_only_what_is_written_on_the_boot_partition_decides() -> None:
    assert decides(write("boot", DECISION))
    assert not decides(write("boot", PROGRAM))
    assert not any(decides(write(name, DECISION)) for name in ("root-a", "root-b", "data"))


def test_the_power_fails_in_the_slot_and_on_both_sides_of_decisions_and_nowhere_else() -> None:
    recording = recorded()
    chosen = moments(recording, random.Random(1))
    assert chosen == sorted(chosen)
    decisions = [at for at, request in enumerate(recording.requests) if decides(request)]
    beside = {moment for at in decisions for moment in (at, at + 1)}
    in_slot = [at for at in chosen if at not in set(sorted(beside)[-CUTS_BESIDE_DECISIONS:])]
    assert {partition_of(recording.requests[at]) for at in in_slot} == {"root-b"}
    assert (len(chosen), len(in_slot)) == (CUTS_WHILE_WRITING + CUTS_BESIDE_DECISIONS, CUTS_WHILE_WRITING)
    assert set(sorted(beside)[-CUTS_BESIDE_DECISIONS:]) <= set(chosen)


def test_requests_outside_of_partitions_and_without_data_belong_to_none() -> None:
    assert partition_of(Request(0, b"a table", flush=False, durable=False)) == ""
    assert partition_of(Request(BEGIN["boot"], b"", flush=True, durable=False)) == ""
    for one in PARTITIONS:
        last = Request(BEGIN[one.name] + one.size_bytes - 1, b"x", flush=False, durable=False)
        assert partition_of(last) == one.name
