"""What the boot script decides: its own text, run by a shell with stand-ins for U-Boot's commands."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.yocto.uboot_board import FIRST, SCRIPT, SECOND, Board


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def test_a_new_card_starts_slot_a(board: Board) -> None:
    start = board.start()
    assert start.slot == "A"
    assert board.state() == {"BOOT_ORDER": "A B", "BOOT_A_LEFT": "2", "BOOT_B_LEFT": "3"}
    assert board.state(SECOND) == board.state(FIRST)


def test_a_slot_that_is_never_marked_good_gives_way_after_three_starts(board: Board) -> None:
    board.set_state(FIRST, SECOND, BOOT_ORDER="B A", BOOT_A_LEFT="3", BOOT_B_LEFT="3")
    assert [board.start().slot for _ in range(4)] == ["B", "B", "B", "A"]


def test_two_reboots_by_the_user_during_the_trial_cost_no_fallback(board: Board) -> None:
    board.set_state(FIRST, SECOND, BOOT_ORDER="B A", BOOT_A_LEFT="3", BOOT_B_LEFT="3")
    assert [board.start().slot for _ in range(3)] == ["B"] * 3
    board.set_state(BOOT_B_LEFT="9")  # the gate, at last
    assert board.start().slot == "B"


def test_a_good_slot_outlasts_eight_power_cuts_in_a_row_before_its_check_is_through(board: Board) -> None:
    board.set_state(FIRST, SECOND, BOOT_ORDER="B A", BOOT_A_LEFT="3", BOOT_B_LEFT="9")
    left = []
    for _ in range(9):
        assert board.start().slot == "B"
        left.append(board.state()["BOOT_B_LEFT"])
    assert left == ["8", "7", "6", "5", "4", "3", "2", "1", "0"]
    assert board.start().slot == "A"


def test_a_confirmed_slot_starts_for_ever(board: Board) -> None:
    for _ in range(5):
        assert board.start().slot == "A"
        board.set_state(BOOT_A_LEFT="9")


def test_with_no_try_left_anywhere_all_slots_get_theirs_back_and_it_starts(board: Board) -> None:
    board.set_state(FIRST, SECOND, BOOT_ORDER="B A", BOOT_A_LEFT="0", BOOT_B_LEFT="0")
    start = board.start()
    assert start.slot == "B"
    assert board.state()["BOOT_A_LEFT"] == "3"
    assert board.state()["BOOT_B_LEFT"] == "2"


@pytest.mark.parametrize("broken", [{"kernel": False}, {"settings": ""}, {"settings": "slot_args=psi=1\n"}])
def test_a_slot_that_cannot_be_started_is_passed_over_in_the_same_start(
    board: Board, broken: dict[str, object]
) -> None:
    board.fill("A", **broken)  # type: ignore[arg-type]
    assert board.start().slot == "B"


def test_a_slot_whose_device_tree_is_missing_is_passed_over(board: Board) -> None:
    board.fill("A", settings="slot_kernel=Image\nslot_fdt=board.dtb\n")
    assert board.start().slot == "B"


def test_a_board_with_two_empty_slots_tries_again_after_a_reset(board: Board) -> None:
    board.fill("A", kernel=False)
    board.fill("B", kernel=False)
    assert board.start().status == 41
    board.fill("B")
    assert board.start().slot == "B"


@pytest.mark.parametrize("order", ["A", "B", "x", "A A", "Bx y"])
def test_an_order_that_names_one_slot_or_none_does_not_hide_the_others(board: Board, order: str) -> None:
    board.set_state(FIRST, SECOND, BOOT_ORDER=order, BOOT_A_LEFT="0", BOOT_B_LEFT="1")
    assert board.start().slot == "B"
    board.set_state(FIRST, SECOND, BOOT_ORDER=order, BOOT_A_LEFT="1", BOOT_B_LEFT="0")
    assert board.start().slot == "A"


@pytest.mark.parametrize(("left", "after"), [("40", "8"), ("-1", "2"), ("none", "2")])
def test_a_count_that_makes_no_sense_is_nine_or_none_and_never_stops_the_board(
    board: Board, left: str, after: str
) -> None:
    board.set_state(FIRST, SECOND, BOOT_ORDER="A B", BOOT_A_LEFT=left, BOOT_B_LEFT="0")
    assert board.start().slot == "A"
    assert board.state()["BOOT_A_LEFT"] == after


def test_the_first_copy_counts_and_the_second_stands_in_for_it(board: Board) -> None:
    board.set_state(FIRST, BOOT_ORDER="B A", BOOT_A_LEFT="3", BOOT_B_LEFT="3")
    board.set_state(SECOND, BOOT_ORDER="A B", BOOT_A_LEFT="3", BOOT_B_LEFT="3")
    assert board.start().slot == "B"
    board.set_state(SECOND, BOOT_ORDER="A B")
    board.break_copy(FIRST)
    assert board.start().slot == "A"
    assert board.state(FIRST) == board.state(SECOND) != {}


def test_a_card_that_cannot_be_written_starts_all_the_same(board: Board) -> None:
    assert [board.start(protected="1").slot for _ in range(5)] == ["A"] * 5


def test_the_kernel_is_told_its_root_its_slot_and_to_come_back_after_a_panic(board: Board) -> None:
    args = board.start(firmware_args="coherent_pool=1M").args.split()
    for expected in (
        "coherent_pool=1M",
        "root=PARTUUID=6d61676e-02",
        "ro",
        "rootwait=30",
        "panic=10",
        "rauc.slot=A",
        "psi=1",
    ):
        assert expected in args
    assert not any(word.startswith("systemd.machine_id") for word in args)


def test_a_machine_id_that_first_boot_has_kept_is_given_to_systemd_from_then_on(board: Board) -> None:
    board.start()
    board.set_state(MACHINE_ID="0123456789abcdef0123456789abcdef")
    for _ in range(2):
        assert "systemd.machine_id=0123456789abcdef0123456789abcdef" in board.start().args.split()


def test_a_slot_with_a_device_tree_of_its_own_takes_nothing_from_the_firmware(board: Board) -> None:
    board.fill("A", settings="slot_kernel=Image\nslot_fdt=board.dtb\nslot_args=console=ttyS2\n")
    (board.folder / "slots/2/boot/board.dtb").write_text("dtb\n")
    args = board.start(firmware_args="coherent_pool=1M").args.split()
    assert "coherent_pool=1M" not in args
    assert "console=ttyS2" in args


def test_the_script_uses_only_commands_that_every_board_s_u_boot_has() -> None:
    """The ROCK 5B's configuration leaves out `setexpr`; `saveenv` would keep what belongs to one board."""
    text = re.sub(r"^\s*#.*", "", SCRIPT.read_text(), flags=re.MULTILINE)
    words = set(re.findall(r"(?:^|;|&&|\|\||then|do)[ \t]*([\w$\{\}]+)", text, flags=re.MULTILINE))
    words |= set(re.findall(r"^\s*if ([\w$\{\}]+)", text, flags=re.MULTILINE))
    keywords = {"if", "then", "else", "fi", "for", "do", "done", "in"}
    commands = words - keywords
    known = {"${devtype}", "booti", "echo", "env", "fdt", "load", "part", "reset", "setenv", "sleep", "test"}
    assert commands == known


class Expected:
    """What the boot script has to do, in few words: two copies of the state, of which the first whole one counts, and
    tries that are counted from the first start on."""

    def __init__(self) -> None:
        self.copies: list[dict[str, str]] = [{}, {}]

    def start(self, *, cut_at: int = 0) -> str | None:
        """The slot that is started; none when the power is cut in that write of the state."""
        state = dict(self.copies[0] or self.copies[1] or {"BOOT_ORDER": "A B"} | left(3, 3))
        if state | left(0, 0) == state:
            state |= left(3, 3)
        slot = next(slot for slot in state["BOOT_ORDER"].split() if state[f"BOOT_{slot}_LEFT"] != "0")
        state[f"BOOT_{slot}_LEFT"] = str(int(state[f"BOOT_{slot}_LEFT"]) - 1)
        for number in (0, 1):
            if cut_at == number + 1:
                self.copies[number] = {}
                return None
            self.copies[number] = dict(state)
        return slot


def left(a: int, b: int) -> dict[str, str]:
    return {"BOOT_A_LEFT": str(a), "BOOT_B_LEFT": str(b)}


EVENTS = st.lists(
    st.one_of(
        st.sampled_from(["crash", "good", "install", "bad"]),
        st.integers(1, 2).map(lambda write: f"cut {write}"),
        st.sampled_from(["break 0", "break 1"]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(events=EVENTS)
@example(events=["crash"] * 8)
@example(events=["install", "crash", "cut 1", "crash", "crash", "crash"])
def test_whatever_happens_a_board_starts_a_slot_and_takes_its_try_from_what_is_known(events: list[str]) -> None:
    """Crashes, confirmations, updates, slots marked bad, power cuts in any write, broken copies: in any order."""
    with tempfile.TemporaryDirectory() as folder:
        board, expected = Board(Path(folder)), Expected()
        running = check_start(board, expected)
        for event in events:
            verb, _, rest = event.partition(" ")
            other = "B" if running == "A" else "A"
            written = {
                "good": {f"BOOT_{running}_LEFT": "9"},
                "install": {"BOOT_ORDER": f"{other} {running}", f"BOOT_{other}_LEFT": "3"},
                "bad": {f"BOOT_{running}_LEFT": "0"},
            }.get(verb)
            # Linux reads and writes the first copy alone.
            if written and expected.copies[0]:
                board.set_state(**written)
                expected.copies[0] |= written
            if verb == "break":
                board.break_copy((FIRST, SECOND)[int(rest)])
                expected.copies[int(rest)] = {}
            if verb == "cut":
                assert board.start(cut_at=rest).status == 40
                assert expected.start(cut_at=int(rest)) is None
            running = check_start(board, expected)


def check_start(board: Board, expected: Expected) -> str:
    start, slot = board.start(), expected.start()
    assert slot is not None
    assert start.slot == slot, start.said
    assert [board.state(FIRST), board.state(SECOND)] == expected.copies
    return slot
