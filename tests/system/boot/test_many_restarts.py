"""A board that restarts its service every day for months must not fill up with what each of them leaves."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from booted_board import SERVICE, STATE, Board
from nspawn import until

pytestmark = [pytest.mark.system, pytest.mark.slow]

RESTARTS = 50


class Inventory(msgspec.Struct, frozen=True):
    """What a service that has come up leaves in the system. Numbers where names differ from start to start."""

    processes: int
    groups: frozenset[str]
    descriptors_of_systemd: int
    stored_descriptors: int
    shared_memory_files: int
    sockets: int
    files: frozenset[str]
    mounts: int


def inventory(board: Board) -> Inventory:
    group = board.show(SERVICE, "ControlGroup")
    below = board.path(f"/sys/fs/cgroup{group}")
    found = board.run(
        "find",
        STATE,
        "/run/magnitude",
        "/tmp",
        "/dev/shm",
        "/var/cache/magnitude",
        "-not",
        "-name",
        "*.log",
        # Of systemd, when a restart comes while it makes the sandbox of the start before.
        "-not",
        "-path",
        "/tmp/namespace-*",
    )
    descriptors = board.run("sh", "-c", "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c memfd: || true").text
    return Inventory(
        processes=len(board.run("ps", "-e", "-o", "comm=").text.split("\n")),
        groups=frozenset(str(path.relative_to(below)) for path in below.rglob("*") if path.is_dir()),
        descriptors_of_systemd=int(board.run("sh", "-c", "ls /proc/1/fd | wc -l").text),
        stored_descriptors=int(board.show(SERVICE, "NFileDescriptorStore")),
        shared_memory_files=int(descriptors),
        sockets=board.run("cat", "/proc/net/unix").text.count("\n"),
        # systemd's names of private folders are random.
        files=frozenset(re.sub(r"systemd-private-\w+-\S+", "private", found.text).split("\n")),
        mounts=board.run("cat", "/proc/self/mountinfo").text.count("\n"),
    )


def settled(board: Board) -> Inventory:
    """What is there once nothing comes any more: the spare engine is started some two seconds after the first."""
    group = board.path(f"/sys/fs/cgroup{board.show(SERVICE, 'ControlGroup')}/engine/cgroup.procs")
    until(lambda: len(group.read_text().split()) == 2, within_s=60, what="a spare engine stands by")
    seen = [inventory(board)]

    def same() -> bool:
        time.sleep(1)
        seen.append(inventory(board))
        return seen[-1] == seen[-2]

    until(same, within_s=60, what="two looks see the same")
    return seen[-1]


def test_fifty_restarts_in_a_row_leave_nothing_behind(boot: Callable[..., Board], oldest_root: Path) -> None:
    board = boot(oldest_root)
    board.wait_ready()
    expected = board.complete()
    board.configure(policy={"explore": "off"})  # sessions that are only tried come and go
    board.run("systemctl", "restart", SERVICE)  # the first one finds what a first start has measured
    board.wait_ready()
    board.complete()
    before = settled(board)
    for number in range(RESTARTS):
        if number % 2:
            board.run("systemctl", "restart", SERVICE)
        else:  # the next restart comes at some moment of this start
            board.run("systemctl", "restart", "--no-block", SERVICE)
            time.sleep(number / RESTARTS)
    board.wait_ready()
    assert board.complete() == expected
    after = settled(board)
    assert after.files == before.files
    assert after == before
    assert board.run("systemctl", "is-system-running", check=False).text.strip() == "running"
    assert board.journal("--unit", SERVICE, "--priority=err").count("\n") <= 1
