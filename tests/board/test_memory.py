from __future__ import annotations

from pathlib import Path

from kernel_trees import write_tree
from magnitude.board import effective_memory

G = "sys/fs/cgroup"
MEMINFO = "MemTotal:        8000000 kB\nMemFree:         1000000 kB\nMemAvailable:    6000000 kB\nSwapFree:  0 kB"
EDGE = {
    "proc/meminfo": MEMINFO,
    "proc/self/cgroup": "0::/edge.slice/edge-llm.service",
    f"{G}/edge.slice/memory.max": 2147483648,
    f"{G}/edge.slice/memory.current": 1700000000,
    f"{G}/edge.slice/edge-llm.service/memory.max": "max",
    f"{G}/edge.slice/edge-llm.service/memory.current": 900000000,
}


def test_the_slice_limits_a_service_that_has_no_limit_of_its_own(tmp_path: Path) -> None:
    memory = effective_memory(write_tree(tmp_path, EDGE))
    assert memory.limit_bytes == 2147483648
    assert memory.headroom_bytes == 447483648
    assert memory.limit_path == str(tmp_path / G / "edge.slice")
    assert memory.available_bytes == 6000000 * 1024


def test_the_services_own_limit_wins_when_it_is_tighter(tmp_path: Path) -> None:
    tree = {**EDGE, f"{G}/edge.slice/edge-llm.service/memory.max": 1000000000}
    memory = effective_memory(write_tree(tmp_path, tree))
    assert memory.limit_bytes == 1000000000
    assert memory.headroom_bytes == 100000000


def test_a_limit_that_changes_is_seen_at_the_next_reading(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, EDGE)
    effective_memory(roots)
    write_tree(tmp_path, {f"{G}/edge.slice/memory.max": 4294967296})
    assert effective_memory(roots).limit_bytes == 4294967296


def test_memavailable_bounds_the_headroom_below_a_wide_limit(tmp_path: Path) -> None:
    tree = {**EDGE, f"{G}/edge.slice/memory.max": 100 * 2**30}
    assert effective_memory(write_tree(tmp_path, tree)).headroom_bytes == 6000000 * 1024


def test_memory_high_bounds_the_headroom_because_the_kernel_throttles_above_it(tmp_path: Path) -> None:
    tree = {**EDGE, f"{G}/edge.slice/edge-llm.service/memory.high": 950000000}
    memory = effective_memory(write_tree(tmp_path, tree))
    assert memory.limit_bytes == 2147483648
    assert memory.high_bytes == 950000000
    assert memory.headroom_bytes == 50000000


def test_file_cache_that_can_be_dropped_is_not_used_memory(tmp_path: Path) -> None:
    tree = {**EDGE, f"{G}/edge.slice/memory.stat": "anon 1500000000\ninactive_file 200000000\nactive_file 1"}
    assert effective_memory(write_tree(tmp_path, tree)).headroom_bytes == 647483648


def test_usage_above_the_limit_is_no_negative_room(tmp_path: Path) -> None:
    tree = {**EDGE, f"{G}/edge.slice/memory.current": 3000000000}
    assert effective_memory(write_tree(tmp_path, tree)).headroom_bytes == 0


def test_the_huge_number_of_version_1_means_unlimited(tmp_path: Path) -> None:
    tree = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "5:memory:/edge",
        f"{G}/memory/edge/memory.limit_in_bytes": 9223372036854771712,
        f"{G}/memory/edge/memory.usage_in_bytes": 900000000,
    }
    memory = effective_memory(write_tree(tmp_path, tree))
    assert memory.limit_bytes is None
    assert memory.headroom_bytes == 6000000 * 1024


def test_a_version_1_ancestor_limits_too(tmp_path: Path) -> None:
    tree = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "5:memory:/edge/llm\n0::/",
        f"{G}/memory/edge/memory.limit_in_bytes": 1000000000,
        f"{G}/memory/edge/memory.usage_in_bytes": 400000000,
        f"{G}/memory/edge/llm/memory.limit_in_bytes": 9223372036854771712,
        f"{G}/unified/cgroup.controllers": "",
    }
    memory = effective_memory(write_tree(tmp_path, tree))
    assert memory.limit_bytes == 1000000000
    assert memory.headroom_bytes == 600000000


def test_a_container_that_sees_the_hosts_group_name_uses_its_mount(tmp_path: Path) -> None:
    for name in ("/docker/0123abc", "/../../outer"):
        tree = {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": f"0::{name}",
            f"{G}/memory.max": 1000000000,
            f"{G}/memory.current": 250000000,
        }
        assert effective_memory(write_tree(tmp_path, tree)).headroom_bytes == 750000000


def test_a_kernel_without_control_groups_still_has_memory(tmp_path: Path) -> None:
    memory = effective_memory(write_tree(tmp_path, {"proc/meminfo": MEMINFO}))
    assert memory.limit_bytes is None
    assert memory.headroom_bytes == memory.available_bytes == 6000000 * 1024


def test_an_old_kernel_without_memavailable_falls_back_to_free_memory(tmp_path: Path) -> None:
    tree = {"proc/meminfo": "MemTotal: 1000 kB\nMemFree: 300 kB"}
    assert effective_memory(write_tree(tmp_path, tree)).headroom_bytes == 300 * 1024
