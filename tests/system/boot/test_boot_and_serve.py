"""From power-on to answers, as an admin finds it: both of the oldest and the newest systemd that we promise."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from booted_board import SERVICE, SOCKET, Board, lines_of

pytestmark = pytest.mark.system

# systemd's figure runs from 0 (safe) to 10.
EXPOSURE_MAX = 2.0


@pytest.fixture(scope="module")
def board(root: Path) -> Iterator[Board]:
    with Board(root) as board:
        board.wait_ready()
        yield board


def test_the_system_is_up_without_a_failed_unit(board: Board) -> None:
    assert board.run("systemctl", "is-system-running", "--wait", check=False).text.strip() == "running"
    assert board.run("systemctl", "is-enabled", SERVICE, SOCKET).text.split() == ["enabled", "enabled"]


def test_both_listeners_answer(board: Board) -> None:
    over_unix = board.complete()
    body = json.dumps({"model": "tiny", "prompt": [3, 7, 11], "max_tokens": 8, "temperature": 0})
    script = (
        "import sys, urllib.request as u;"
        " r = u.Request('http://127.0.0.1:11500/v1/completions', sys.argv[1].encode());"
        " r.add_header('Content-Type', 'application/json'); print(u.urlopen(r).read().decode())"
    )
    over_tcp = json.loads(board.run("python3", "-c", script, body).text)["choices"][0]["text"]
    assert over_tcp == over_unix


def test_service_and_engine_run_as_a_user_of_their_own_in_control_groups_of_their_own(board: Board) -> None:
    groups = set()
    for pid in (board.main_pid, board.engine_pid):
        assert board.run("ps", "-o", "user:32=,group:32=", "-p", str(pid)).text.split() == ["magnitude", "magnitude"]
        (line,) = lines_of(board.run("cat", f"/proc/{pid}/cgroup").text, "0::")
        group = line.removeprefix("0::")
        assert f"/{SERVICE}/" in group
        groups.add(group)
    assert len(groups) == 2


def test_the_engine_cannot_speak_to_systemd_in_the_name_of_the_service(board: Board) -> None:
    names = {pair.split("=")[0] for pair in board.path(f"/proc/{board.engine_pid}/environ").read_text().split("\0")}
    assert not {name for name in names if name.startswith(("NOTIFY_", "WATCHDOG_", "LISTEN_", "FDSTORE"))}


def test_status_shows_a_line_worth_reading(board: Board) -> None:
    shown = board.run("systemctl", "status", SERVICE).text
    (line,) = lines_of(shown, "Status:")
    assert "tiny" in line
    assert "active (running)" in shown


def test_the_command_line_finds_the_service_by_itself(board: Board) -> None:
    assert "ready" in board.run("magnitude", "ps").text


def test_members_of_the_group_may_use_the_socket_and_nobody_else(board: Board) -> None:
    assert board.run("runuser", "-u", "nobody", "--", "magnitude", "ps", check=False).status != 0
    assert board.run("runuser", "-u", "nobody", "-g", "magnitude", "--", "magnitude", "ps").status == 0


def test_systemd_has_nothing_to_say_against_the_units(board: Board) -> None:
    assert board.run("systemd-analyze", "verify", "--man=no", SERVICE, SOCKET).text == ""
    verdict = board.run("systemd-analyze", "security", "--no-pager", SERVICE).text
    (figure,) = re.findall(r"Overall exposure level for .*: ([0-9.]+)", verdict)
    assert float(figure) <= EXPOSURE_MAX, verdict
