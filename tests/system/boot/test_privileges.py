"""What the service may do inside its sandbox, tried out there; and what it may not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from booted_board import SERVICE, STATE, Board
from cpu_files import CPUS, LIMIT, bound, close_to_all_but_root, show_cpus, write_cpus
from nspawn import until

pytestmark = pytest.mark.system

# Runs after the service in the very same sandbox, and notes what worked.
PROBE = f"""
import ctypes, json, os, pathlib
from magnitude.board.event_source import UdevSource, Unavailable
def works(act):
    try:
        act()
        return True
    except OSError:
        return False
def write(path, text):
    with open(path, "w") as file:
        file.write(text)
group = "/sys/fs/cgroup" + pathlib.Path("/proc/self/cgroup").read_text().split("0::")[1].strip()
found = {{
    "choose cores": works(lambda: os.sched_setaffinity(0, {{0}})),
    # 19, because these tests may themselves run with less than full priority.
    "be nicer": works(lambda: os.setpriority(os.PRIO_PROCESS, 0, 19)),
    "memfd": works(lambda: os.memfd_create("probe")),
    "limit the clock": works(lambda: write("{CPUS}/{LIMIT}", "1500000\\n")),
    "raise the lower limit": works(lambda: write("{CPUS}/cpufreq/policy0/scaling_min_freq", "1\\n")),
    "switch a core off": works(lambda: write("{CPUS}/cpu1/online", "0\\n")),
    "change sysctl": works(lambda: write("/proc/sys/vm/swappiness", "1\\n")),
    "write below /etc": works(lambda: write("/etc/magnitude/other.yaml", "")),
    "write below /usr": works(lambda: write("/opt/magnitude/other", "")),
    # There is no udev in a container; what the kernel itself announces takes the same library and the same socket.
    "hear of devices": not isinstance(UdevSource(stage="kernel").open(1 << 20), Unavailable),
    "see others": os.path.exists("/proc/1/status"),
    "be root": works(lambda: os.setuid(0)),
    "own group": works(lambda: os.mkdir(os.path.dirname(group) + "/probe")),
    "pressure": os.environ.get("MEMORY_PRESSURE_WATCH", ""),
}}
write("{STATE}/probe.json", json.dumps(found))
"""


@pytest.fixture(scope="module")
def sysfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cpus(tmp_path_factory.mktemp("cpu"))


@pytest.fixture(scope="module")
def board(root: Path, sysfs: Path) -> Iterator[Board]:
    unit = "[Service]\nExecStartPost=/opt/magnitude/bin/python /probe.py\n"
    with Board(root, unit=unit, options=[bound(sysfs)], files={"/probe.py": PROBE}) as board:
        board.wait_ready()
        show_cpus(board)
        board.run("systemctl", "restart", SERVICE)
        board.wait_ready()
        yield board


@pytest.fixture(scope="module")
def found(board: Board) -> dict[str, Any]:
    noted: dict[str, Any] = json.loads(board.path(f"{STATE}/probe.json").read_text())
    return noted


@pytest.mark.parametrize(
    "what", ["choose cores", "be nicer", "memfd", "limit the clock", "own group", "hear of devices"]
)
def test_the_sandbox_lets_the_service_do_its_work(found: dict[str, Any], what: str) -> None:
    assert found[what]


@pytest.mark.parametrize(
    "what",
    [
        "raise the lower limit",
        "switch a core off",
        "change sysctl",
        "write below /etc",
        "write below /usr",
        "be root",
    ],
)
def test_the_sandbox_refuses_what_the_service_does_not_need(found: dict[str, Any], what: str) -> None:
    assert not found[what]


def test_other_users_processes_are_not_there(found: dict[str, Any]) -> None:
    assert not found["see others"]


def test_a_policy_that_appears_later_can_be_limited_too(board: Board, sysfs: Path) -> None:
    """A driver that was loaded late makes its files anew, with the kernel's owner and mode."""
    limit = sysfs / LIMIT
    close_to_all_but_root(limit)
    as_service = ["runuser", "-u", "magnitude", "--", "sh", "-c", f"echo 1200000 > {CPUS}/{LIMIT}"]
    assert board.run(*as_service, check=False).status != 0
    board.run("runuser", "-u", "magnitude", "--", "touch", "/run/magnitude/service/permissions-wanted")
    until(lambda: limit.stat().st_mode & 0o020, within_s=30, what="the helper opens the file again")
    assert board.run(*as_service).status == 0


def test_systemd_tells_of_memory_pressure_where_it_can(board: Board, found: dict[str, Any]) -> None:
    version = int(board.run("systemctl", "--version").text.split()[1])
    assert bool(found["pressure"]) == (version >= 254)
