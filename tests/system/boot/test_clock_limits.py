"""CPU clock limits under systemd: what the service has set is gone when the service is, whatever ended it.

The caps are set by the service's own code, in its sandbox and as its user, from a process that starts beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from booted_board import SERVICE, STATE, Board
from cpu_files import HARDWARE_KHZ, LIMIT, bound, close_to_all_but_root, show_cpus, write_cpus
from nspawn import until

pytestmark = pytest.mark.system

CAP_KHZ = 1000000
WANTED = f"{STATE}/cap-once"
PUT_BACK = f"policy0: {HARDWARE_KHZ} kHz again"
# Sets a cap at the next start only.
CAP = f"""
import os, pathlib
from magnitude.board.clock_caps import ClockCaps
from magnitude.board.roots import HostRoots
wanted = pathlib.Path("{WANTED}")
if wanted.exists():
    wanted.unlink()
    caps = ClockCaps(HostRoots(), pathlib.Path(os.environ["RUNTIME_DIRECTORY"]))
    print(caps.set({{"policy0": {CAP_KHZ}}}), flush=True)
"""


@pytest.fixture(scope="module")
def sysfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_cpus(tmp_path_factory.mktemp("cpu"))
    (folder / "cpufreq/policy0/cpuinfo_min_freq").write_text(f"{CAP_KHZ}\n")
    return folder


@pytest.fixture(scope="module")
def booted(root: Path, sysfs: Path) -> Iterator[Board]:
    unit = "[Service]\nExecStartPost=/opt/magnitude/bin/python /cap.py\n"
    with Board(root, unit=unit, options=[bound(sysfs)], files={"/cap.py": CAP}) as board:
        board.wait_ready()
        show_cpus(board)
        # nspawn shows a boot id of its own; the sandbox's fresh /proc shows the host's. Without a container there is
        # one for all.
        board.run("umount", "/proc/sys/kernel/random/boot_id")
        yield board


@pytest.fixture
def board(booted: Board, sysfs: Path) -> Board:
    """A board on which the service has just capped the clock."""
    booted.run("runuser", "-u", "magnitude", "--", "touch", WANTED)
    booted.run("systemctl", "restart", SERVICE)
    booted.wait_ready()
    assert limit_khz(sysfs) == CAP_KHZ, booted.journal("-n", "30")
    return booted


def limit_khz(sysfs: Path) -> int:
    return int((sysfs / LIMIT).read_text() or 0)


def lines_put_back(board: Board) -> int:
    return board.journal("-u", SERVICE).count(PUT_BACK)


def test_after_a_kill_the_clock_is_free_before_the_next_service_comes(board: Board, sysfs: Path) -> None:
    before = lines_put_back(board)
    board.kill("KILL", board.main_pid)
    until(lambda: limit_khz(sysfs) == HARDWARE_KHZ, within_s=60, what="the limit is put back")
    until(lambda: lines_put_back(board) == before + 1, within_s=60, what="the unit says so")
    board.wait_ready()
    assert limit_khz(sysfs) == HARDWARE_KHZ


def test_after_a_stop_the_clock_is_free(board: Board, sysfs: Path) -> None:
    board.run("systemctl", "stop", SERVICE)
    assert limit_khz(sysfs) == HARDWARE_KHZ
    assert board.show(SERVICE, "Result") == "success"
    board.run("systemctl", "start", SERVICE)


def test_a_limit_that_was_closed_meanwhile_is_opened_to_be_put_back(board: Board, sysfs: Path) -> None:
    close_to_all_but_root(sysfs / LIMIT)
    board.run("systemctl", "stop", SERVICE)
    assert limit_khz(sysfs) == HARDWARE_KHZ, board.journal("-n", "30")
    board.run("systemctl", "start", SERVICE)


def test_an_admins_own_limit_outlives_the_service(board: Board, sysfs: Path) -> None:
    (sysfs / LIMIT).write_text("1800000\n")
    board.kill("KILL", board.main_pid)
    until(board.ready, within_s=60, what="the next service serves")
    assert limit_khz(sysfs) == 1800000
    (sysfs / LIMIT).write_text(f"{HARDWARE_KHZ}\n")


def test_an_end_without_limits_starts_nothing(booted: Board) -> None:
    booted.run("systemctl", "restart", SERVICE)
    booted.wait_ready()
    before = booted.journal("-u", SERVICE)
    booted.run("systemctl", "restart", SERVICE)
    assert "clock limit" not in booted.journal("-u", SERVICE).removeprefix(before)


def test_by_hand_root_puts_back_what_a_service_has_set(board: Board, sysfs: Path) -> None:
    assert PUT_BACK in board.run("magnitude", "restore-clocks").text
    assert limit_khz(sysfs) == HARDWARE_KHZ
