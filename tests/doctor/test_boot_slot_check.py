"""The doctor's look at the slot that runs and at a Raspberry Pi's EEPROM."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnitude.board import HostRoots
from magnitude.config import Settings
from magnitude.doctor import DoctorContext
from magnitude.doctor.checks import boot_slot
from magnitude.doctor.checks.boot_slot import OLDEST_EEPROM_S, eeprom_built_s, judge
from magnitude.paths import find_paths

GPT = "root=PARTUUID=6d61676e-0001-4000-8000-00000000000{} rauc.slot={}"
MBR = "root=PARTUUID=6d61676e-0{} rauc.slot={}"


def pi_tree(root: Path, *, built: bytes | None, model: bytes = b"raspberrypi,5-model-b\0brcm,bcm2712\0") -> HostRoots:
    tree = root / "proc/device-tree"
    (tree / "chosen/bootloader").mkdir(parents=True)
    (tree / "compatible").write_bytes(model)
    if built is not None:
        (tree / "chosen/bootloader/build-timestamp").write_bytes(built)
    return HostRoots.under(root)


@pytest.mark.parametrize("line", [GPT, MBR])
@pytest.mark.parametrize(("number", "slot"), [(2, "A"), (3, "B")])
def test_a_slot_on_its_own_partition_is_fine(line: str, number: int, slot: str) -> None:
    assert judge(line.format(number, slot).split(), None).level == "ok"


@pytest.mark.parametrize(
    ("name", "slot", "level"), [("root-a", "A", "ok"), ("root-b", "B", "ok"), ("root-b", "A", "error")]
)
def test_a_boot_loader_may_name_the_partition_instead(name: str, slot: str, level: str) -> None:
    assert judge([f"root=PARTLABEL={name}", f"rauc.slot={slot}"], None).level == level


@pytest.mark.parametrize("line", [GPT, MBR])
@pytest.mark.parametrize(("number", "slot"), [(3, "A"), (2, "B"), (4, "A"), (2, "C")])
def test_a_slot_whose_root_is_another_partition_is_an_error(line: str, number: int, slot: str) -> None:
    assert judge(line.format(number, slot).split(), None).level == "error"


def test_a_second_root_behind_the_boot_script_s_is_found() -> None:
    finding = judge([*MBR.format(2, "A").split(), "root=/dev/mmcblk0p3"], None)
    assert finding.level == "error"
    assert "root=" in finding.advice


def test_a_system_without_slots_is_no_fault() -> None:
    assert judge(["root=/dev/sda1", "quiet"], OLDEST_EEPROM_S - 1).level == "ok"


def test_an_eeprom_from_before_the_fixes_is_a_warning_and_no_error() -> None:
    """The other slot would start through the same EEPROM: falling back helps nobody."""
    words = MBR.format(2, "A").split()
    assert judge(words, OLDEST_EEPROM_S - 1).level == "warning"
    assert judge(words, OLDEST_EEPROM_S).level == "ok"


def test_the_eeprom_s_time_is_read_from_the_device_tree(tmp_path: Path) -> None:
    # As a Pi 5 with the release of 13 May 2024 shows it.
    assert eeprom_built_s(pi_tree(tmp_path, built=bytes.fromhex("66422e75"))) == 0x66422E75 >= OLDEST_EEPROM_S


@pytest.mark.parametrize(
    ("built", "model"),
    [
        (None, b"brcm,bcm2712\0"),
        (b"\0", b"brcm,bcm2712\0"),
        (bytes(4), b"radxa,rock-5b\0rockchip,rk3588\0"),
    ],
)
def test_a_board_that_does_not_tell_has_no_eeprom_time(tmp_path: Path, built: bytes | None, model: bytes) -> None:
    assert eeprom_built_s(pi_tree(tmp_path, built=built, model=model)) is None


def test_the_running_machine_is_asked_through_its_roots(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cmdline").write_text(MBR.format(3, "A") + "\n")
    context = DoctorContext(settings=Settings(), paths=find_paths(), roots=HostRoots.under(tmp_path))
    assert boot_slot.check(context).level == "error"
