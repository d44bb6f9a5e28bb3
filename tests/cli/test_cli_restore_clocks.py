from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernel_trees import write_tree
from magnitude.board import HostRoots
from magnitude.board.cap_files import CapRefusal, write_limit
from magnitude.board.clock_caps import ClockCaps, PolicyCap
from magnitude.cli.main import app
from magnitude.cli.restore_clocks import put_back, said
from magnitude.supervise.permissions import REQUEST_NAME

LIMIT = "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq"


@pytest.fixture
def roots(tmp_path: Path) -> HostRoots:
    (tmp_path / "run").mkdir()
    return write_tree(tmp_path, {LIMIT: 2400000, "proc/sys/kernel/random/boot_id": "boot"})


def test_what_a_killed_service_left_is_put_back_and_said(roots: HostRoots, tmp_path: Path) -> None:
    ClockCaps(roots, tmp_path / "run").set({"policy0": 1000000})
    nowhere, found = put_back([tmp_path / "nowhere", tmp_path / "run"], roots, may_ask=True)
    assert nowhere.policies == {}
    assert [said(*item) for item in found.policies.items()] == ["policy0: 2400000 kHz again"]
    assert int((tmp_path / LIMIT).read_text()) == 2400000


def test_a_limit_that_stays_is_said_with_its_reason() -> None:
    cap = PolicyCap(in_force_khz=1800000, refusal=CapRefusal(kind="not_ours", detail="somebody else has set it"))
    assert said("policy4", cap) == "policy4: not put back: somebody else has set it"


class ClosedFile:
    """A limit that refuses until the privileged helper has opened it, which takes it one nap of ours."""

    def __init__(self, request: Path, *, helper: bool) -> None:
        self.now_s = 0.0
        self._request = request
        self._helper = helper
        self._open = False

    def write(self, path: Path, khz: int) -> None:
        if not self._open:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        write_limit(path, khz)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self._open = self._helper and self._request.exists()


@pytest.mark.parametrize(("may_ask", "helper", "khz"), [(1, 1, 2400000), (1, 0, 1000000), (0, 1, 1000000)])
def test_a_file_that_wants_permission_is_asked_for_and_tried_again_for_a_while(
    tmp_path: Path, roots: HostRoots, may_ask: bool, helper: bool, khz: int
) -> None:
    ClockCaps(roots, tmp_path / "run").set({"policy0": 1000000})
    request = tmp_path / "run" / REQUEST_NAME
    closed = ClosedFile(request, helper=helper)
    (outcome,) = put_back(
        [tmp_path / "run"],
        roots,
        may_ask=may_ask,
        monotonic=lambda: closed.now_s,
        sleep=closed.sleep,
        write=closed.write,
    )
    assert int((tmp_path / LIMIT).read_text()) == khz
    assert bool(outcome.refused) == (khz != 2400000)
    assert request.exists() == bool(may_ask)


def test_the_verb_says_when_there_is_nothing_to_put_back(
    cli: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGNITUDE_HOME", str(tmp_path))
    result = cli.invoke(app, ["restore-clocks"])
    assert result.exit_code == 0, result.output
    assert result.stdout == "No clock limit is left to be put back.\n"
