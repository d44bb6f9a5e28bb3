from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_trees import write_tree
from magnitude.board import HostRoots
from magnitude.supervise.cgroup_leaf import (
    SERVICE_RESERVE_BYTES,
    EngineCgroup,
    engine_limit_bytes,
    enter_leaf,
)

MIB = 1 << 20
UNIT = "sys/fs/cgroup/system.slice/magnitude.service"


def unit_tree(
    root: Path,
    *,
    own: str = "/system.slice/magnitude.service",
    limit: str = "max",
    controllers: str = "cpu memory pids",
) -> HostRoots:
    """A unit's group with this process in it, and the files that the kernel would make in groups below."""
    files: dict[str, str | int] = {
        "proc/self/cgroup": f"0::{own}",
        "proc/meminfo": "MemTotal: 1000000 kB\nMemAvailable: 800000 kB",
        f"{UNIT}/cgroup.procs": "4711",
        f"{UNIT}/cgroup.controllers": controllers,
        f"{UNIT}/cgroup.subtree_control": "",
        f"{UNIT}/memory.max": limit,
        f"{UNIT}/service/cgroup.procs": "",
        f"{UNIT}/engine/cgroup.procs": "",
    }
    if "memory" in controllers:
        files |= {
            f"{UNIT}/engine/memory.max": "max",
            f"{UNIT}/engine/memory.events": "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1",
        }
    return write_tree(root, files)


def delegates(root: Path) -> Callable[[Path], bool]:
    return lambda folder: folder == root / UNIT


def written(root: Path, name: str) -> str:
    """What was written to the file last."""
    return "".join((root / UNIT / name).read_text().splitlines()[:1])


def test_the_service_steps_down_and_the_engine_gets_a_group(tmp_path: Path) -> None:
    group = enter_leaf(unit_tree(tmp_path), delegated=delegates(tmp_path))
    assert written(tmp_path, "service/cgroup.procs") == "4711"
    assert group.folder == tmp_path / UNIT / "engine"
    assert group.add(815)
    assert written(tmp_path, "engine/cgroup.procs") == "815"


@pytest.mark.parametrize(("offered", "handed_out"), [("cpuset memory io", "+memory"), ("cpuset io", "")])
def test_only_controllers_that_are_there_are_handed_out(offered: str, handed_out: str, tmp_path: Path) -> None:
    enter_leaf(unit_tree(tmp_path, controllers=offered), delegated=delegates(tmp_path))
    assert written(tmp_path, "cgroup.subtree_control") == handed_out


def test_a_service_that_systemd_started_in_the_leaf_uses_the_group_above(tmp_path: Path) -> None:
    roots = unit_tree(tmp_path, own="/system.slice/magnitude.service/service")
    group = enter_leaf(roots, delegated=delegates(tmp_path))
    assert group.folder == tmp_path / UNIT / "engine"


def test_the_engines_limit_lies_below_the_units(tmp_path: Path) -> None:
    group = enter_leaf(unit_tree(tmp_path, limit=str(1024 * MIB)), delegated=delegates(tmp_path))
    group.add(815)
    assert written(tmp_path, "engine/memory.max") == str(1024 * MIB - SERVICE_RESERVE_BYTES)


def test_a_limit_that_changed_since_counts_for_the_next_engine(tmp_path: Path) -> None:
    group = enter_leaf(unit_tree(tmp_path, limit=str(8192 * MIB)), delegated=delegates(tmp_path))
    (tmp_path / UNIT / "memory.max").write_text(str(4096 * MIB))
    group.add(815)
    assert written(tmp_path, "engine/memory.max") == str(4096 * MIB - SERVICE_RESERVE_BYTES)


def test_a_tighter_limit_of_a_slice_above_counts(tmp_path: Path) -> None:
    roots = unit_tree(tmp_path, limit=str(4096 * MIB))
    (tmp_path / "sys/fs/cgroup/system.slice/memory.max").write_text(str(1024 * MIB))
    enter_leaf(roots, delegated=delegates(tmp_path)).add(815)
    assert written(tmp_path, "engine/memory.max") == str(1024 * MIB - SERVICE_RESERVE_BYTES)


def test_without_any_limit_the_engine_has_none(tmp_path: Path) -> None:
    enter_leaf(unit_tree(tmp_path), delegated=delegates(tmp_path)).add(815)
    assert written(tmp_path, "engine/memory.max") == "max"


@given(st.integers(64 * MIB, 1 << 40))
def test_service_and_engine_both_get_a_useful_part(limit_bytes: int) -> None:
    engine = engine_limit_bytes(limit_bytes)
    assert limit_bytes * 3 // 4 <= engine < limit_bytes
    assert limit_bytes - engine <= SERVICE_RESERVE_BYTES


def test_kills_for_want_of_memory_are_counted(tmp_path: Path) -> None:
    group = enter_leaf(unit_tree(tmp_path), delegated=delegates(tmp_path))
    assert group.oom_kills() == 1


def test_without_a_memory_controller_the_engine_still_has_its_group(tmp_path: Path) -> None:
    group = enter_leaf(unit_tree(tmp_path, controllers="cpuset cpu io pids"), delegated=delegates(tmp_path))
    assert group.add(815)
    assert group.oom_kills() is None
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 815\noom_kill 4\n")
    assert group.oom_kills() == 4


def test_where_nothing_is_delegated_everything_is_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    roots = unit_tree(tmp_path)
    with caplog.at_level(logging.INFO):
        group = enter_leaf(roots, delegated=lambda folder: False)
    assert group.folder is None
    assert not group.add(815)
    assert written(tmp_path, "cgroup.procs") == "4711"
    assert written(tmp_path, "service/cgroup.procs") == ""
    assert len(caplog.records) == 1


@pytest.mark.parametrize("cgroup", ["", "5:memory:/edge\n0::/../..", "1:name=systemd:/x"])
def test_version_one_and_containers_are_left_alone(cgroup: str, tmp_path: Path) -> None:
    roots = write_tree(tmp_path, {"proc/self/cgroup": cgroup, "proc/meminfo": "MemTotal: 1 kB"})
    assert enter_leaf(roots).folder is None


def test_a_group_that_cannot_be_divided_costs_a_warning_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    roots = unit_tree(tmp_path)
    (tmp_path / UNIT / "service/cgroup.procs").unlink()
    with caplog.at_level(logging.WARNING):
        group = enter_leaf(roots, delegated=delegates(tmp_path))
    assert group.folder is None
    assert [record.message for record in caplog.records] == ["control group cannot be divided"]


def test_a_process_that_cannot_be_moved_stays_where_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    group = EngineCgroup(tmp_path / "gone", roots=HostRoots.under(tmp_path))
    assert not group.add(815)
    assert "stays" in caplog.text
