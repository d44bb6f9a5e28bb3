"""How often a slot may be started before it is confirmed: RAUC's configuration says it, and boot loaders, code and
texts mean the same."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path

import pytest

from image.guest.file_systems import FIRST_ENVIRONMENT, environment
from image.guest.tree import FILES
from magnitude.update.trial import MAX_REBOOTS
from yocto.checks.layer import CHECKOUT, LAYER

RAUC = configparser.ConfigParser()
RAUC.read(LAYER / "dynamic-layers/rauc/recipes-core/rauc/files/system.conf")
NEW, GOOD = (int(RAUC["system"][key]) for key in ("boot-attempts-primary", "boot-attempts"))
SCRIPT = (LAYER / "recipes-bsp/magnitude-boot/files/boot.cmd").read_text()
GRUB = (FILES / "grub.cfg").read_text()
WORDS = {3: "three", 9: "nine"}
UPDATES, IMAGES = ((CHECKOUT / "docs" / name).read_text() for name in ("updates.md", "image.md"))


def test_a_good_slot_has_more_tries_than_a_new_one() -> None:
    """A board that is switched off and on some times within the minutes of its check has nothing wrong with it."""
    assert GOOD > NEW > 1


def test_u_boot_s_script_gives_what_rauc_gives_a_new_slot() -> None:
    assert {int(given) for given in re.findall(r"setenv BOOT_[AB]_LEFT (\d)", SCRIPT)} == {NEW}


def test_grub_gives_what_rauc_gives_a_new_slot() -> None:
    assert {int(given) for given in re.findall(r"set [AB]_LEFT=(\d)", GRUB)} == {NEW}
    assert {int(FIRST_ENVIRONMENT[f"{slot}_LEFT"]) for slot in "AB"} == {NEW}


@pytest.mark.parametrize(
    ("written", "left"), [(("B_OK=1", "B_TRY=0", "ORDER=B A"), NEW), (("B_OK=1", "B_TRY=0"), GOOD)]
)
def test_grub_s_environment_gives_an_update_and_a_good_slot_what_rauc_gives_them_elsewhere(
    tmp_path: Path, written: tuple[str, ...], left: int
) -> None:
    block = tmp_path / "grubenv"
    block.write_bytes(environment(FIRST_ENVIRONMENT | {"B_LEFT": "0"}))
    subprocess.run(["sh", FILES / "grub-editenv", block, "set", *written], check=True)
    assert f"B_LEFT={left}\n" in block.read_text()


@pytest.mark.parametrize("text", [SCRIPT, GRUB], ids=["U-Boot", "GRUB"])
def test_boot_loaders_count_down_from_what_a_good_slot_has(text: str) -> None:
    """Neither can subtract: they take the largest number below."""
    (numbers,) = re.findall(r"for (?:m_)?number in ([\d ]+);", text)
    assert [int(number) for number in numbers.split()] == list(range(GOOD))


def test_the_check_reboots_as_often_as_there_are_tries_for_an_update() -> None:
    assert MAX_REBOOTS == NEW


def test_tests_of_booted_images_wait_for_the_tries_of_a_good_slot() -> None:
    text = (CHECKOUT / "tests/system/image/image_machine.py").read_text()
    assert re.findall(r"_LEFT=(\d+)", text) == [str(GOOD)]


def test_the_texts_say_the_same_numbers() -> None:
    (table,) = re.findall(r"\| The slot \| Tries \|\n(.*?)\n\n", UPDATES, flags=re.S)
    rows = [int(found) for found in re.findall(r"(?m)\| (\d)[^|]*\|$", table)]
    assert rows == [NEW, GOOD, 0, NEW]
    (shown,) = re.findall(r"```\nBOOT_ORDER=A B\n(.*?)```", UPDATES, flags=re.S)
    assert {int(left) for left in re.findall(r"LEFT=(\d)", shown)} == {NEW}
    assert f"within {WORDS[NEW]} boots gives way to the other one ({WORDS[GOOD]}, when" in IMAGES
    for name, text in {"boot.cmd": SCRIPT, "grub-editenv": (FILES / "grub-editenv").read_text()}.items():
        comments = " ".join(re.findall(r"(?m)^# ?(.*)$", text))
        assert re.search(rf"\b{WORDS[GOOD]}\b", comments), name
        assert re.search(rf"(?i)\b{WORDS[NEW]}\b", comments), name
