from __future__ import annotations

from pathlib import Path

from kernel_trees import write_tree
from magnitude.board.memory import effective_memory
from magnitude.board.memory_events import read_events

G = "sys/fs/cgroup"
EVENTS = "low 0\nhigh 50000\nmax 3\noom 1\noom_kill 1"


def test_each_counter_is_that_of_the_group_that_it_tells_about(tmp_path: Path) -> None:
    tree = {
        "proc/self/cgroup": "0::/edge.slice/edge.service/service",
        "proc/vmstat": "nr_free_pages 1\noom_kill 4",
        f"{G}/edge.slice/memory.events": "high 7\nmax 3\noom 2\noom_kill 9",
        f"{G}/edge.slice/memory.max": 2000000000,
        f"{G}/edge.slice/edge.service/memory.high": 629145600,
        f"{G}/edge.slice/edge.service/memory.events": "low 0\nhigh 50000\nmax 0\noom 0\noom_kill 1",
        f"{G}/edge.slice/edge.service/service/memory.events": "high 0\nmax 0\noom 0\noom_kill 0",
    }
    roots = write_tree(tmp_path, tree)
    events = read_events(roots, effective_memory(roots).groups)
    assert (events.high, events.max, events.oom, events.oom_kill, events.board_oom_kill) == (50000, 3, 2, 1, 4)
    assert events.path == str(tmp_path / G / "edge.slice")


def test_without_a_limit_the_own_group_is_asked(tmp_path: Path) -> None:
    tree = {"proc/self/cgroup": "0::/edge.service", f"{G}/edge.service/memory.events": EVENTS}
    roots = write_tree(tmp_path, tree)
    assert read_events(roots, effective_memory(roots).groups).oom_kill == 1


def test_without_a_limit_the_units_group_counts_for_the_engine_beside_the_service(tmp_path: Path) -> None:
    tree = {
        "proc/self/cgroup": "0::/system.slice/edge.service/service",
        f"{G}/system.slice/memory.events": "oom_kill 9",
        f"{G}/system.slice/edge.service/memory.events": EVENTS,
        f"{G}/system.slice/edge.service/service/memory.events": "oom_kill 0",
    }
    roots = write_tree(tmp_path, tree)
    assert read_events(roots, effective_memory(roots).groups).oom_kill == 1


def test_version_1_counts_failures_and_kills_elsewhere(tmp_path: Path) -> None:
    tree = {
        "proc/self/cgroup": "5:memory:/edge",
        f"{G}/memory/edge/memory.failcnt": 12,
        f"{G}/memory/edge/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2",
        f"{G}/memory/edge/memory.limit_in_bytes": 1000,
    }
    roots = write_tree(tmp_path, tree)
    events = read_events(roots, effective_memory(roots).groups)
    assert (events.high, events.max, events.oom_kill) == (None, 12, 2)


def test_a_kernel_that_counts_nothing_gives_nothing(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, {})
    events = read_events(roots, effective_memory(roots).groups)
    assert (events.high, events.max, events.oom_kill, events.board_oom_kill) == (None, None, None, None)
