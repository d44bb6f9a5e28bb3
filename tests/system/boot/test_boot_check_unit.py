"""The unit that proves a system after its boot, in its sandbox. Boot loader and slot tool are stubs; the service, its
inference, systemd and the reboots are real."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from booted_board import Board
from nspawn import until

sys.path.insert(0, str(Path(__file__).parents[2] / "update"))

from stub_rauc import PROGRAM

pytestmark = pytest.mark.system

CHECK = "magnitude-boot-check.service"
# Where the real slot tool keeps its state, and the one place that the unit may write to.
DATA = "/var/lib/rauc"
LOADER = f"{DATA}/loader.json"
# What the boot loader does at each start. The system in slot B is one whose service does not even start.
START = f"""#!/usr/bin/python3
import json, pathlib, subprocess
at = pathlib.Path("{LOADER}")
state = json.loads(at.read_text())
state["booted"] = next(name for name in state["order"] if state["left"][name] > 0)
state["left"][state["booted"]] -= 1
at.write_text(json.dumps(state))
if state["booted"] == "B":
    broken = pathlib.Path("/run/systemd/system/magnitude.service.d/99-broken.conf")
    broken.parent.mkdir(parents=True)
    broken.write_text("[Service]\\nExecStart=\\nExecStart=/bin/false\\n")
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    subprocess.run(["systemctl", "restart", "--no-block", "magnitude.service"], check=True)
"""
# The minute is two seconds here, and ten are enough for a start.
UNIT = """[Service]
ExecStartPre=+/usr/local/bin/boot-loader
ExecStart=
ExecStart=/opt/magnitude/bin/magnitude update check --within {within} --steady 2s
"""
# Two boots of the system and its service, with a margin of ten.
REBOOT_S = 60.0


@pytest.fixture
def board(boot: Callable[..., Board], root: Path) -> Board:
    """Slot A runs, as flashed; nothing was proved yet."""
    state = {"booted": "A", "order": ["A", "B"], "left": {"A": 3, "B": 3}, "installed": {}}
    files = {
        "/usr/local/bin/rauc": PROGRAM.format(python="/usr/bin/python3", state=LOADER, log=f"{DATA}/asked"),
        "/usr/local/bin/boot-loader": START,
        LOADER: json.dumps(state),
        f"/etc/systemd/system/{CHECK}.d/90-test.conf": UNIT.format(within="60s"),
    }
    board = boot(root, files=files)
    board.run("chmod", "+x", "/usr/local/bin/rauc", "/usr/local/bin/boot-loader")
    board.run("/opt/magnitude/bin/magnitude", "install-units", "--image", "--command", "/opt/magnitude/bin/magnitude")
    return board


def loader(board: Board) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(board.path(LOADER).read_text())
    return state


def checked(board: Board) -> str:
    """Wait for the end of the check; how it ended."""
    until(
        lambda: board.show(CHECK, "ActiveState") in ("inactive", "failed"), within_s=REBOOT_S, what="the check ends"
    )
    return board.show(CHECK, "Result")


def test_a_system_that_works_is_proved_and_its_slot_marked_good(board: Board) -> None:
    board.run("systemctl", "start", CHECK)
    assert checked(board) == "success"
    assert "Slot A is marked good." in board.journal("-u", CHECK)
    assert loader(board)["left"]["A"] == 3
    assert "proved" in board.run("magnitude", "update", "status").text


def test_an_update_that_cannot_serve_is_taken_back_by_itself(board: Board) -> None:
    board.run("systemctl", "start", CHECK)
    assert checked(board) == "success"
    installed = {"B": {"version": "2.0", "count": 1}}
    # One try, so that the test needs one reboot of its own, and one back.
    state = {**loader(board), "order": ["B", "A"], "left": {"A": 3, "B": 1}, "installed": installed}
    board.write(LOADER, json.dumps(state))
    board.write(f"/etc/systemd/system/{CHECK}.d/90-test.conf", UNIT.format(within="3s"))
    leader = board.leader
    board.run("systemctl", "--no-block", "reboot")
    board.wait_reboot(REBOOT_S)
    assert leader != board.leader
    # The check fails in slot B, and reboots the system by itself.
    board.wait_reboot(REBOOT_S)
    board.write(f"/etc/systemd/system/{CHECK}.d/90-test.conf", UNIT.format(within="60s"))
    board.run("systemctl", "daemon-reload")
    board.run("systemctl", "reset-failed", check=False)
    board.wait_ready()
    if checked(board) != "success":  # three seconds were too few for this start
        board.run("systemctl", "start", CHECK)
        assert checked(board) == "success"
    state = loader(board)
    assert (state["booted"], state["order"]) == ("A", ["A"])
    said = board.run("magnitude", "update", "status").text
    assert "The update in slot B was taken back" in said


def test_a_proved_system_that_fails_stays_and_is_seen_to_have_failed(board: Board) -> None:
    board.run("systemctl", "start", CHECK)
    assert checked(board) == "success"
    board.run("systemctl", "mask", "--runtime", "--now", "magnitude.socket", "magnitude.service")
    board.write(f"/etc/systemd/system/{CHECK}.d/90-test.conf", UNIT.format(within="3s"))
    board.run("systemctl", "daemon-reload")
    board.run("systemctl", "start", CHECK, check=False)
    assert checked(board) == "exit-code"
    assert board.show(CHECK, "ExecMainStatus") == "3"
    assert "proved to work before" in board.journal("-u", CHECK)
    assert CHECK in board.run("systemctl", "--failed", "--no-legend").text
