from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from capped_board import CPUFREQ, OPPS, CappedBoard

from kernel_trees import write_tree
from magnitude.board.cap_files import write_limit
from magnitude.board.cap_record import RECORD_NAME
from magnitude.board.clock_caps import ClockCaps, PolicyCap, restore_leftover


@pytest.fixture
def board(tmp_path: Path) -> CappedBoard:
    return CappedBoard(tmp_path)


def refusing(number: int, *, until: Callable[[], bool] = lambda: False) -> Callable[[Path, int], None]:
    """A kernel that answers so, until a fact holds."""

    def write(path: Path, khz: int) -> None:
        if not until():
            raise OSError(number, os.strerror(number), str(path))
        write_limit(path, khz)

    return write


def kind(caps: ClockCaps, khz: int | None = 1000000, policy: str = "policy0") -> str:
    """Ask for a cap; the kind of its refusal, or "" when it is in force."""
    refusal = caps.set({policy: khz}).policies[policy].refusal
    return refusal.kind if refusal else ""


def test_a_cap_is_written_and_read_back_and_lifted_again(board: CappedBoard) -> None:
    caps = ClockCaps(board.roots, board.run)
    assert caps.set({"policy0": 1500000}).policies == {"policy0": PolicyCap(asked_khz=1500000, in_force_khz=1500000)}
    assert board.limit() == 1500000
    assert caps.set({"policy0": None}).in_force_khz == {"policy0": 2400000}
    assert board.limit() == 2400000
    assert not (board.run / RECORD_NAME).exists()


def test_policies_are_capped_each_by_its_own_limit(tmp_path: Path) -> None:
    board = CappedBoard(tmp_path, policies=("policy0", "policy4", "policy6"))
    caps = ClockCaps(board.roots, board.run)
    caps.set({"policy4": 1800000, "policy6": 1200000})
    caps.set({"policy4": None})
    assert [board.limit(name) for name in ("policy0", "policy4", "policy6")] == [2400000, 2400000, 1200000]
    caps.restore()
    assert board.limit("policy6") == 2400000


@pytest.mark.parametrize(
    ("asked", "written"),
    [(1999999, 1800000), (2000000, 2000000), (1, OPPS[0]), (-5, OPPS[0]), (9999999, OPPS[-1])],
)
def test_a_cap_is_a_clock_that_the_hardware_has(board: CappedBoard, asked: int, written: int) -> None:
    ClockCaps(board.roots, board.run).set({"policy0": asked})
    assert board.limit() == written


def test_without_a_list_of_clocks_a_cap_stays_within_the_hardwares_limits(board: CappedBoard) -> None:
    board.path().with_name("scaling_available_frequencies").unlink()
    caps = ClockCaps(board.roots, board.run)
    assert caps.set({"policy0": 1234567}).in_force_khz == {"policy0": 1234567}
    assert caps.set({"policy0": 400000}).in_force_khz == {"policy0": 1000000}


def test_a_cap_lifts_no_limit_that_was_there_before(tmp_path: Path) -> None:
    board = CappedBoard(tmp_path, limit_khz=1800000)
    caps = ClockCaps(board.roots, board.run)
    assert caps.set({"policy0": 2200000}).policies["policy0"].refusal is None
    assert board.limit() == 1800000
    caps.set({"policy0": 1200000})
    caps.set({"policy0": 2200000})
    assert board.limit() == 1800000


def test_a_killed_services_cap_is_not_the_next_ones_original(board: CappedBoard) -> None:
    ClockCaps(board.roots, board.run).set({"policy0": 1000000})
    following = ClockCaps(board.roots, board.run)
    assert board.limit() == 2400000
    following.set({"policy0": 1200000})
    following.restore()
    assert board.limit() == 2400000


def test_what_a_killed_service_left_is_put_back_once(board: CappedBoard) -> None:
    ClockCaps(board.roots, board.run).set({"policy0": 1000000})
    assert restore_leftover(board.run, board.roots).in_force_khz == {"policy0": 2400000}
    board.admin_sets(1000000)
    assert restore_leftover(board.run, board.roots).policies == {}
    assert board.limit() == 1000000


def test_a_record_of_an_earlier_boot_is_ignored(board: CappedBoard) -> None:
    ClockCaps(board.roots, board.run).set({"policy0": 1000000})
    board.reboot()
    board.admin_sets(1000000)
    assert restore_leftover(board.run, board.roots).policies == {}
    following = ClockCaps(board.roots, board.run)
    assert board.limit() == 1000000
    board.admin_sets(2000000)
    following.set({"policy0": 1200000})
    following.restore()
    assert board.limit() == 2000000


def test_a_record_of_another_tree_is_ignored(board: CappedBoard, tmp_path: Path) -> None:
    ClockCaps(board.roots, board.run).set({"policy0": 1000000})
    (tmp_path / "simulated").mkdir()
    simulated = CappedBoard(tmp_path / "simulated", limit_khz=1000000)
    assert restore_leftover(board.run, simulated.roots).policies == {}
    assert simulated.limit() == 1000000


def test_a_limit_that_somebody_set_meanwhile_stays_after_a_kill(board: CappedBoard) -> None:
    ClockCaps(board.roots, board.run).set({"policy0": 1000000})
    board.admin_sets(1800000)
    (cap,) = restore_leftover(board.run, board.roots).policies.values()
    assert (cap.in_force_khz, cap.refusal and cap.refusal.kind) == (1800000, "not_ours")
    # Its original is forgotten: what happens to read like our cap later is not ours.
    board.admin_sets(1000000)
    ClockCaps(board.roots, board.run)
    assert board.limit() == 1000000


def test_a_limit_that_somebody_set_meanwhile_is_left_alone_until_it_is_given_back(board: CappedBoard) -> None:
    caps = ClockCaps(board.roots, board.run)
    caps.set({"policy0": 1000000})
    board.admin_sets(1800000)
    assert kind(caps, 1200000) == "not_ours"
    # Nothing is to be done against these, and so nothing refuses.
    assert kind(caps, None) == kind(caps, 2000000) == ""
    assert kind(caps, 1200000) == "not_ours"
    board.admin_sets(1500000)
    assert caps.renew().refused["policy0"].kind == "not_ours"
    caps.restore()
    assert board.limit() == 1500000
    board.admin_sets(2400000)
    assert kind(caps, 1200000) == ""
    assert board.limit() == 1200000


def test_a_limit_that_the_kernel_lowers_for_heat_is_still_ours_beneath(board: CappedBoard) -> None:
    caps = ClockCaps(board.roots, board.run)
    caps.set({"policy0": 2000000})
    board.cools(2)
    board.admin_sets(1500000)  # what the file reads while the kernel cools
    cap = caps.renew().policies["policy0"]
    assert (cap.asked_khz, cap.in_force_khz, cap.refusal) == (1500000, 1500000, None)
    caps.restore()
    assert board.limit() == 2400000


def test_cooling_that_begins_between_two_reads_is_not_taken_for_somebody(tmp_path: Path) -> None:
    board = CappedBoard(tmp_path, policies=("policy0", "policy4"))

    def heating(path: Path, khz: int) -> None:
        write_limit(path, khz)
        if path == board.path("policy0") and khz == 1000000:
            board.cools(2)
            board.admin_sets(1500000, "policy4")

    caps = ClockCaps(board.roots, board.run, write=heating)
    caps.set({"policy4": 2000000})
    assert caps.set({"policy0": 1000000, "policy4": 1800000}).refused == {}
    caps.restore()
    assert board.limit("policy4") == 2400000


def test_a_limit_below_ours_is_somebodys_when_the_kernel_does_not_cool(board: CappedBoard) -> None:
    board.cools(3, kind="pwm-fan")
    caps = ClockCaps(board.roots, board.run)
    caps.set({"policy0": 2000000})
    board.admin_sets(1500000)
    assert kind(caps, None) == "not_ours"
    assert board.limit() == 1500000


def test_no_cap_is_set_while_the_kernel_hides_what_was_there_before(board: CappedBoard) -> None:
    board.cools(1)
    board.admin_sets(1800000)
    caps = ClockCaps(board.roots, board.run)
    assert kind(caps, 1200000) == "kernel_limit"
    board.cools(0)
    board.admin_sets(2400000)
    assert caps.renew().in_force_khz == {"policy0": 1200000}


def test_what_is_in_force_is_said_when_it_differs(board: CappedBoard) -> None:
    def firmware_knows_better(path: Path, khz: int) -> None:
        write_limit(path, min(khz, 1200000))

    caps = ClockCaps(board.roots, board.run, write=firmware_knows_better)
    cap = caps.set({"policy0": 1800000}).policies["policy0"]
    assert (cap.asked_khz, cap.in_force_khz, cap.refusal) == (1800000, 1200000, None)
    # What was made of it is ours as well, for this service and for the next.
    assert kind(caps, 1500000) == ""
    assert restore_leftover(board.run, board.roots).in_force_khz == {"policy0": 2400000}


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, "permission"),
        (errno.EPERM, "permission"),
        (errno.EROFS, "read_only"),
        (errno.EINVAL, "invalid"),
        (errno.EBUSY, "busy"),
        (errno.ENOSPC, "no_space"),
        (errno.ENODEV, "gone"),
        (errno.EIO, "failed"),
    ],
)
def test_a_refusal_is_said_with_its_reason_and_leaves_no_record(board: CappedBoard, number: int, said: str) -> None:
    caps = ClockCaps(board.roots, board.run, write=refusing(number))
    cap = caps.set({"policy0": 1000000}).policies["policy0"]
    assert cap.refusal is not None
    assert (cap.refusal.kind, cap.asked_khz, cap.in_force_khz) == (said, 1000000, 2400000)
    assert str(board.path()) in cap.refusal.detail
    assert not (board.run / RECORD_NAME).exists()


def test_one_policy_that_refuses_leaves_the_others_capped(tmp_path: Path) -> None:
    board = CappedBoard(tmp_path, policies=("policy0", "policy4"))
    board.path("policy0").unlink()
    board.path("policy0").symlink_to("/dev/full")
    outcome = ClockCaps(board.roots, board.run).set({"policy0": 1000000, "policy4": 1000000})
    assert list(outcome.refused) == ["policy0"]
    assert board.limit("policy4") == 1000000


@pytest.mark.parametrize("text", ["", "<unsupported>", "0", "-1", "²"])
def test_a_limit_that_is_no_number_is_never_taken_for_an_original(board: CappedBoard, text: str) -> None:
    board.path().write_text(text)
    assert kind(ClockCaps(board.roots, board.run)) == "unreadable"
    assert board.path().read_text() == text


def test_a_limit_that_cannot_be_read_is_not_written(board: CappedBoard) -> None:
    board.path().unlink()
    board.path().symlink_to("/proc/self/mem")  # EIO
    assert kind(ClockCaps(board.roots, board.run)) == "unreadable"


@pytest.mark.parametrize("policy", ["policy9", "cpu0", "../policy0", "", "policy0/../policy0"])
def test_a_policy_that_is_not_there_is_said_to_be_gone(board: CappedBoard, policy: str) -> None:
    assert kind(ClockCaps(board.roots, board.run), policy=policy) == "gone"
    assert board.limit() == 2400000


def test_permission_is_asked_for_and_the_cap_set_when_it_is_given(board: CappedBoard) -> None:
    asked: list[Path] = []
    write = refusing(errno.EACCES, until=lambda: bool(asked))
    caps = ClockCaps(board.roots, board.run, ask_permission=asked.append, write=write)
    assert kind(caps) == "permission"
    assert asked == [board.path()]
    assert caps.renew().in_force_khz == {"policy0": 1000000}
    assert caps.renew().refused == {}
    assert asked == [board.path()]


def test_a_limit_that_cannot_be_put_back_stays_noted(board: CappedBoard) -> None:
    caps = ClockCaps(board.roots, board.run)
    caps.set({"policy0": 1000000})
    closed = ClockCaps(board.roots, board.run, write=refusing(errno.EACCES))
    assert closed.leftover.refused["policy0"].kind == "permission"
    assert restore_leftover(board.run, board.roots).in_force_khz == {"policy0": 2400000}


def test_a_policy_that_came_back_without_its_cap_is_capped_again(board: CappedBoard) -> None:
    caps = ClockCaps(board.roots, board.run)
    caps.set({"policy0": 1000000})
    shutil.rmtree(board.path().parent)
    assert caps.renew().refused["policy0"].kind == "gone"
    board.add("policy0")
    assert caps.renew().in_force_khz == {"policy0": 1000000}
    caps.restore()
    assert board.limit() == 2400000


def test_a_policy_that_was_made_anew_unseen_is_capped_again(tmp_path: Path) -> None:
    board = CappedBoard(tmp_path, limit_khz=2000000)
    caps = ClockCaps(board.roots, board.run)
    caps.set({"policy0": 1000000})
    board.add("policy0")  # the driver's own limit, the hardware's
    assert caps.renew().in_force_khz == {"policy0": 1000000}
    caps.restore()
    assert board.limit() == 2000000


def test_restoring_leaves_a_policy_that_was_made_anew_as_it_is(tmp_path: Path) -> None:
    board = CappedBoard(tmp_path, limit_khz=2000000)
    caps = ClockCaps(board.roots, board.run)
    caps.set({"policy0": 1000000})
    board.add("policy0")
    caps.restore()
    assert board.limit() == 2400000


def test_nothing_is_asked_for_again_after_a_restore(board: CappedBoard) -> None:
    caps = ClockCaps(board.roots, board.run)
    caps.set({"policy0": 1000000})
    caps.restore()
    assert caps.renew().policies == {}
    assert board.limit() == 2400000


def test_without_room_for_the_record_no_cap_is_set(board: CappedBoard) -> None:
    caps = ClockCaps(board.roots, board.run)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))  # enough for a limit, too little for a record
    try:
        refused = kind(caps)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert refused == "no_record"
    assert board.limit() == 2400000
    assert list(board.run.iterdir()) == []


def test_without_a_folder_for_the_record_no_cap_is_set(board: CappedBoard) -> None:
    shutil.rmtree(board.run)
    caps = ClockCaps(board.roots, board.run)
    cap = caps.set({"policy0": 1000000}).policies["policy0"]
    assert cap.refusal is not None
    assert cap.refusal.kind == "no_record"
    assert RECORD_NAME in cap.refusal.detail
    assert board.limit() == 2400000
    board.run.mkdir()
    assert caps.renew().in_force_khz == {"policy0": 1000000}


def test_a_cap_is_not_changed_without_a_record_but_is_put_back(board: CappedBoard) -> None:
    caps = ClockCaps(board.roots, board.run)
    caps.set({"policy0": 1500000})
    shutil.rmtree(board.run)
    assert kind(caps, 1000000) == "no_record"
    assert board.limit() == 1500000
    assert caps.restore().in_force_khz == {"policy0": 2400000}


def test_without_a_boot_id_no_cap_is_set(board: CappedBoard) -> None:
    (board.root / "proc/sys/kernel/random/boot_id").unlink()
    assert kind(ClockCaps(board.roots, board.run)) == "no_record"
    assert board.limit() == 2400000


@pytest.mark.parametrize("content", [b"", b"{", b"\0" * 100, b'{"schema":1,"sha256":"","value":{}}'])
def test_a_record_that_is_not_whole_changes_nothing(board: CappedBoard, content: bytes) -> None:
    board.admin_sets(1000000)
    (board.run / RECORD_NAME).write_bytes(content)
    assert restore_leftover(board.run, board.roots).policies == {}
    assert board.limit() == 1000000


def test_a_kill_between_note_and_cap_does_no_harm(board: CappedBoard) -> None:
    class Killed(BaseException):
        pass

    def die(path: Path, khz: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        ClockCaps(board.roots, board.run, write=die).set({"policy0": 1000000})
    assert (board.run / RECORD_NAME).exists()
    assert restore_leftover(board.run, board.roots).refused == {}
    assert board.limit() == 2400000
    assert not (board.run / RECORD_NAME).exists()


def test_a_kill_between_one_cap_and_the_next_is_undone(board: CappedBoard) -> None:
    class Killed(BaseException):
        pass

    writes: list[int] = []

    def die_at_the_second(path: Path, khz: int) -> None:
        writes.append(khz)
        if len(writes) == 2:
            raise Killed
        write_limit(path, khz)

    caps = ClockCaps(board.roots, board.run, write=die_at_the_second)
    caps.set({"policy0": 1500000})
    with pytest.raises(Killed):
        caps.set({"policy0": 1000000})
    assert board.limit() == 1500000
    assert restore_leftover(board.run, board.roots).in_force_khz == {"policy0": 2400000}


def test_nothing_is_written_when_nothing_changes(board: CappedBoard) -> None:
    writes: list[int] = []

    def count(path: Path, khz: int) -> None:
        writes.append(khz)
        write_limit(path, khz)

    caps = ClockCaps(board.roots, board.run, write=count)
    caps.set({"policy0": None})
    caps.set({"policy0": 2400000})
    caps.set({"policy0": 1500000})
    caps.set({"policy0": 1500001})
    caps.renew()
    assert writes == [1500000]


def test_a_board_without_cpufreq_is_none_the_worse(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, {"proc/sys/kernel/random/boot_id": "boot"})
    caps = ClockCaps(roots, tmp_path)
    assert kind(caps) == "gone"
    assert caps.restore().policies == {}
    assert not (tmp_path / CPUFREQ).exists()
