"""What hangs is replaced within its deadline, what is killed comes back, and clients get the text they are due.

Deadlines are short here, so that the tests are; that they are kept is asserted with wide margins.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import rootfs
from booted_board import SERVICE, Board, lines_of
from nspawn import until

pytestmark = [pytest.mark.system, pytest.mark.models]

STEP_DEADLINE_S = 3
WATCHDOG_S = 6
UNIT = f"[Service]\nWatchdogSec={WATCHDOG_S}s\nTimeoutAbortSec=3s\n"
SETTINGS = {"engine": {"speculation": "off", "step_deadline_s": f"{STEP_DEADLINE_S}s"}}
QUESTION = "Write a long story about a lighthouse keeper."
LENGTH = {"max_tokens": 80, "logit_bias": {"0": -100, "2": -100}}
# A line that Python runs when it starts: on SIGUSR2 the thread of the event loop sleeps, all others go on.
BLOCKS_ON_SIGNAL = 'import signal; signal.signal(signal.SIGUSR2, lambda *_: __import__("time").sleep(3600))\n'


@pytest.fixture(scope="module")
def board(oldest_root: Path, chat_model: Path) -> Iterator[Board]:
    packages = f"{rootfs.PREFIX}/lib/python{rootfs.python_of(oldest_root)}/site-packages"
    files = {f"{packages}/blocks_on_signal.pth": BLOCKS_ON_SIGNAL}
    with Board(oldest_root, settings=SETTINGS, unit=UNIT, models=[chat_model], files=files) as board:
        board.wait_ready()
        yield board


@pytest.fixture(scope="module")
def undisturbed(board: Board) -> str:
    return board.stream(QUESTION, **LENGTH).whole()


def gone(board: Board, engine: int) -> bool:
    return board.engine_pid not in (0, engine)


def test_a_stream_whose_engine_is_killed_ends_with_the_text_of_an_undisturbed_one(
    board: Board, undisturbed: str
) -> None:
    stream, engine = board.stream(QUESTION, **LENGTH), board.engine_pid
    stream.begun()
    board.kill("KILL", engine)
    assert stream.whole() == undisturbed
    assert gone(board, engine)


def test_an_engine_that_hangs_is_replaced_within_its_deadline_and_the_stream_goes_on(
    board: Board, undisturbed: str
) -> None:
    board.wait_ready()
    stream, engine = board.stream(QUESTION, **LENGTH), board.engine_pid
    stream.begun()
    board.kill("STOP", engine)
    until(lambda: gone(board, engine), within_s=10 * STEP_DEADLINE_S, what="the hung engine is replaced")
    assert stream.whole() == undisturbed
    assert board.restarts == 0, "the service itself was restarted"


@pytest.mark.parametrize("how", ["stopped", "blocked loop"])
def test_a_service_that_hangs_is_restarted_and_says_where_it_stood(board: Board, how: str) -> None:
    board.wait_ready()
    before, main, began = board.restarts, board.main_pid, time.monotonic()
    board.kill("STOP" if how == "stopped" else "USR2", main)
    until(lambda: board.restarts == before + 1, within_s=10 * WATCHDOG_S, what="systemd restarts the service")
    # A client that comes meanwhile waits at the socket.
    assert board.chat("What is the capital of France?")["choices"][0]["message"]["content"]
    since = f"--since=-{int(time.monotonic() - began) + 1}s"
    journal = board.journal(since, f"_PID={main}") + board.journal(since, "--unit", SERVICE, "_PID=1")
    assert any(lines_of(journal, "atchdog"))
    assert any(lines_of(journal, "File ", "line ")), "no stacks in the journal"


def test_nothing_of_a_killed_service_lives_on(board: Board) -> None:
    board.wait_ready()
    main, engine = board.main_pid, board.engine_pid
    board.kill("KILL", main)
    until(lambda: board.main_pid not in (0, main), within_s=60, what="systemd restarts the service")
    board.wait_ready()
    assert not board.path(f"/proc/{engine}").exists() or gone(board, engine)
    listed = board.run("systemctl", "show", "--property=ControlGroup", "--value", SERVICE).text.strip()
    pids = [path.read_text().split() for path in board.path(f"/sys/fs/cgroup{listed}").rglob("cgroup.procs")]
    assert sum(map(len, pids)) <= 3, pids  # the service, its engine, and at most one spare
