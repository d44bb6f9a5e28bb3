"""The boot loader's choice of a slot, by the real one: GRUB on the firmware for QEMU. Takes minutes: on demand.

pytest -m on_demand tests/system/image/test_boot_choice.py

The slots of these disks are empty, so that each boot ends in the boot loader, which starts the machine anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from image_machine import ImageMachine

from image.guest import qemu
from image.guest.build import Parts, cache_folder, kept_parts
from image.guest.file_systems import EFI_NAMES, GRUB_MODULES, make_boot_image
from image.guest.partitions import MIB, layout, write_disk
from image.guest.tree import FILES

pytestmark = [pytest.mark.system, pytest.mark.on_demand]

WHOLE = {"A_OK": "1", "A_TRY": "0", "A_LEFT": "3", "B_OK": "1", "B_TRY": "0", "B_LEFT": "3"}

# Where a command begins in a script of GRUB: at a line's or a statement's beginning, behind a word that opens one.
COMMAND = re.compile(r"(?m)(?:^|;)\s*(?:(?:if|then|else|do)\s+)*([a-z_]+|\[)")
# Words of the language, and what GRUB's core has.
LANGUAGE = {"if", "then", "else", "fi", "for", "do", "done", "set"}


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_every_command_of_the_script_is_built_in(architecture: str, can_build: Callable[[str], None]) -> None:
    """One that is not is passed over with a line on the console: the machine starts, and does without."""
    can_build(architecture)
    folder = kept_parts(cache_folder(), architecture).boot / "grub" / EFI_NAMES[architecture][1]
    listed = [line.split(":", 1) for line in (folder / "command.lst").read_text().splitlines()]
    module_of = {name.lstrip("*"): module.strip() for name, module in listed}
    needs = dict(line.split(":", 1) for line in (folder / "moddep.lst").read_text().splitlines())
    built_in: set[str] = set()
    wanted = list(GRUB_MODULES)
    while wanted:
        if (name := wanted.pop()) not in built_in:
            built_in.add(name)
            wanted += needs.get(name, "").split()
    script = re.sub(r"(?m)^\s*#.*$", "", (FILES / "grub.cfg").read_text())
    commands = set(COMMAND.findall(script)) - LANGUAGE
    assert {"source", "regexp", "save_env", "initrd", "["} <= commands
    missing = sorted(name for name in commands if module_of.get(name) not in built_in)
    assert not missing


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
