"""The boot script in the real U-Boot, on an emulated board: what `tests/yocto/test_boot_script.py` shows of its
decisions, here of its text, its checksums and its place on the card. A few seconds a start; by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.yocto.qemu_board import QemuBoard, missing

pytestmark = [
    pytest.mark.on_demand,
    pytest.mark.skipif(
        bool(missing()), reason=f"lacks {', '.join(missing())}: run scripts/system-test-setup --on-demand"
    ),
]


@pytest.mark.parametrize(("table", "root"), [("gpt", "6d61676e-0001-4000-8000-000000000002"), ("dos", "6d61676e-02")])
def test_a_new_card_starts_slot_a_and_keeps_both_copies(tmp_path: Path, table: str, root: str) -> None:
    board = QemuBoard(tmp_path, table)
    start = board.start()
    assert start.slot == "A", start.said
    assert board.state(0) == board.state(1) == {"BOOT_ORDER": "A B", "BOOT_A_LEFT": "2", "BOOT_B_LEFT": "3"}
    for word in (f"root=PARTUUID={root}", "rauc.slot=A", "panic=10", "psi=1"):
        assert word in start.args.split()


def test_an_update_that_is_never_confirmed_falls_back_and_the_old_slot_stays(tmp_path: Path) -> None:
    board = QemuBoard(tmp_path)
    assert board.start().slot == "A"
    # What the boot check and `rauc install` write.
    board.fw_setenv(BOOT_A_LEFT="9", BOOT_B_LEFT="3", BOOT_ORDER="B A")
    assert [board.start().slot for _ in range(4)] == ["B", "B", "B", "A"]
    board.fw_setenv(BOOT_A_LEFT="9")
    assert board.start().slot == "A"


def test_an_update_that_is_confirmed_stays(tmp_path: Path) -> None:
    board = QemuBoard(tmp_path)
    assert board.start().slot == "A"
    board.fw_setenv(BOOT_B_LEFT="3", BOOT_ORDER="B A")
    for _ in range(5):
        assert board.start().slot == "B"
        board.fw_setenv(BOOT_B_LEFT="9")  # as the boot check marks it


def test_with_no_try_left_it_starts_all_the_same(tmp_path: Path) -> None:
    board = QemuBoard(tmp_path)
    board.start()
    board.fw_setenv(BOOT_A_LEFT="0", BOOT_B_LEFT="0")
    start = board.start()
    assert start.slot == "A", start.said
    assert board.state() == {"BOOT_ORDER": "A B", "BOOT_A_LEFT": "2", "BOOT_B_LEFT": "3"}


def test_a_slot_without_a_kernel_is_passed_over_and_an_empty_board_resets(tmp_path: Path) -> None:
    board = QemuBoard(tmp_path)
    board.fill("A", with_kernel=False)
    assert board.start().slot == "B"
    board.fill("B", with_kernel=False)
    start = board.start()
    assert start.slot is None
    assert "Trying again" in start.said
    board.fill("A")
    assert board.start().slot == "A"


def test_a_torn_first_copy_costs_one_start_of_history_and_no_more(tmp_path: Path) -> None:
    board = QemuBoard(tmp_path)
    board.start()
    board.fw_setenv(BOOT_ORDER="B A")
    assert board.start().slot == "B"
    board.fw_setenv(BOOT_B_LEFT="3")
    board.break_copy(0)
    assert board.start().slot == "B"
    assert board.state(0) == board.state(1) != {}
    board.break_copy(0)
    board.break_copy(1)
    assert board.start().slot == "A"


def test_a_machine_id_kept_beside_the_counters_reaches_the_kernel(tmp_path: Path) -> None:
    board = QemuBoard(tmp_path)
    board.start()
    board.fw_setenv(MACHINE_ID="0123456789abcdef0123456789abcdef")
    for _ in range(2):
        assert "systemd.machine_id=0123456789abcdef0123456789abcdef" in board.start().args.split()
