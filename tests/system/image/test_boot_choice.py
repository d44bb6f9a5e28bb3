"""The boot loader's choice of a slot, by the real one: GRUB on the firmware for QEMU. Takes minutes: on demand.

pytest -m on_demand tests/system/image/test_boot_choice.py

The slots of these disks are empty, so that each boot ends in the boot loader, which starts the machine anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from image_machine import ImageMachine

from image.guest import qemu
from image.guest.build import Parts
from image.guest.file_systems import make_boot_image
from image.guest.partitions import MIB, layout, write_disk

pytestmark = [pytest.mark.system, pytest.mark.on_demand]

WHOLE = {"A_OK": "1", "A_TRY": "0", "A_LEFT": "3", "B_OK": "1", "B_TRY": "0", "B_LEFT": "3"}


@pytest.mark.parametrize(
    ("variables", "slots"),
    [
        # Three tries each, in order; then, rather than nothing, from the beginning.
        ({"ORDER": "B A", **WHOLE}, "BBBAAAB"),
        # Confirmed since, so all three are left of A, and one of B.
        ({"ORDER": "B A", **WHOLE, "B_LEFT": "1"}, "BAAA"),
        # A slot that is being written is never started, also when the other one has no try left.
        ({"ORDER": "A B", **WHOLE, "A_TRY": "1", "A_LEFT": "0", "B_OK": "0"}, "AAAA"),
        # Nine of a slot that was confirmed.
        ({"ORDER": "A B", **WHOLE, "A_LEFT": "9"}, "AAAAAAAAAB"),
        # Neither is said to be whole: one of them all the same.
        ({"ORDER": "A B", **WHOLE, "A_OK": "0", "B_OK": "0"}, "BB"),
    ],
    ids=["three-tries", "tries-go-on", "being-written", "nine-tries", "nothing-whole"],
)
def test_tries_are_counted_and_no_machine_is_stranded(
    parts: Parts, tmp_path: Path, variables: dict[str, str], slots: str
) -> None:
    partitions = layout(MIB, MIB)
    make_boot_image(
        parts.workshop, tmp_path, "boot.fat", partitions[0].size_bytes, "amd64", parts.boot / "grub", variables
    )
    write_disk(parts.workshop, tmp_path, "disk.img", partitions, {"boot": "boot.fat"})
    with ImageMachine("amd64", qemu.disk(tmp_path / "disk.img"), tmp_path / "run") as machine:
        assert machine.wait_boots(len(slots))[: len(slots)] == slots


def test_a_note_of_the_machine_s_id_that_is_damaged_boots_a_slot(parts: Parts, tmp_path: Path) -> None:
    partitions = layout(MIB, MIB)
    make_boot_image(parts.workshop, tmp_path, "boot.fat", partitions[0].size_bytes, "amd64", parts.boot / "grub")
    (tmp_path / "damaged").write_bytes(b"machine_id='if [ \x00\xff $(\n")
    parts.workshop.run(tmp_path, "mcopy", "-i", "boot.fat", "damaged", "::/machine-id.env")
    write_disk(parts.workshop, tmp_path, "disk.img", partitions, {"boot": "boot.fat"})
    with ImageMachine("amd64", qemu.disk(tmp_path / "disk.img"), tmp_path / "run") as machine:
        assert machine.wait_boots(2)[:2] == "AA"


def test_an_environment_that_cannot_be_read_boots_a_slot(parts: Parts, tmp_path: Path) -> None:
    partitions = layout(MIB, MIB)
    make_boot_image(parts.workshop, tmp_path, "boot.fat", partitions[0].size_bytes, "amd64", parts.boot / "grub")
    (tmp_path / "broken").write_bytes(bytes(1024))
    parts.workshop.run(tmp_path, "mcopy", "-o", "-i", "boot.fat", "broken", "::/grub/grubenv")
    write_disk(parts.workshop, tmp_path, "disk.img", partitions, {"boot": "boot.fat"})
    with ImageMachine("amd64", qemu.disk(tmp_path / "disk.img"), tmp_path / "run") as machine:
        assert machine.wait_boots(2)[:2] == "AA"
