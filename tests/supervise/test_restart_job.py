from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from magnitude.board.roots import HostRoots
from magnitude.supervise.restart_job import job_types, restart_follows, unit_of

# `systemctl list-jobs --plain --no-legend` of systemd 252.
RESTARTING = "1093 magnitude.service restart running\n"
STOPPING = "1093 magnitude.service stop running\n"
SHUTDOWN = "812 magnitude.service stop running\n807 magnitude.socket stop waiting\n"

SYSTEMCTL = """
import sys
answers = {answers!r}
for word, (text, status) in answers.items():
    if word in sys.argv:
        sys.stdout.write(text)
        sys.exit(status)
"""


def board(tmp_path: Path, groups: str = "0::/system.slice/magnitude.service/main\n") -> HostRoots:
    (tmp_path / "self").mkdir(exist_ok=True)
    (tmp_path / "self" / "cgroup").write_text(groups)
    return HostRoots(proc=tmp_path)


def systemctl(tmp_path: Path, jobs: str, held: str, status: int = 0) -> list[str]:
    script = tmp_path / "systemctl.py"
    script.write_text(SYSTEMCTL.format(answers={"list-jobs": (jobs, status), "show": (held, status)}))
    return [sys.executable, str(script)]


@pytest.mark.parametrize(
    ("jobs", "held", "status", "follows"),
    [
        (RESTARTING, "2\n", 0, True),
        (RESTARTING, "1\n", 0, False),
        (RESTARTING, "", 0, False),
        (RESTARTING, "2\n", 1, False),
        (STOPPING, "2\n", 0, False),
        (SHUTDOWN, "2\n", 0, False),
        ("", "2\n", 0, False),
    ],
)
def test_a_restart_follows_when_systemd_restarts_and_holds_what_was_stored(
    tmp_path: Path, jobs: str, held: str, status: int, follows: bool
) -> None:
    command = systemctl(tmp_path, jobs, held, status)
    assert asyncio.run(restart_follows(2, roots=board(tmp_path), command=command)) is follows


def test_without_a_unit_or_without_systemd_nothing_follows(tmp_path: Path) -> None:
    command = systemctl(tmp_path, RESTARTING, "2\n")
    outside = board(tmp_path, "0::/user.slice/user-1000.slice/session-2.scope\n")
    assert asyncio.run(restart_follows(2, roots=outside, command=command)) is False
    assert asyncio.run(restart_follows(2, roots=board(tmp_path), command=["/nowhere/systemctl"])) is False
    assert asyncio.run(restart_follows(2, roots=HostRoots(proc=tmp_path / "none"), command=command)) is False


def test_the_unit_is_the_innermost_service_of_the_control_group() -> None:
    assert unit_of("0::/system.slice/magnitude.service\n") == ("magnitude.service", False)
    of_user = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/magnitude.service/engine\n"
    assert unit_of(of_user) == ("magnitude.service", True)
    hybrid = "5:memory:/system.slice/other.service\n1:name=systemd:/system.slice/magnitude.service\n"
    assert unit_of(hybrid) == ("magnitude.service", False)
    assert unit_of("") == unit_of("garbage\n") == ("", False)


def test_jobs_of_other_units_do_not_count() -> None:
    listing = "1 other.service restart running\n2 magnitude.service stop waiting\nNo jobs running.\n"
    assert job_types(listing, "magnitude.service") == {"stop"}
