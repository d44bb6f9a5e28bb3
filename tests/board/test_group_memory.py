from __future__ import annotations

from pathlib import Path

from kernel_trees import write_tree
from magnitude.board import effective_memory
from magnitude.board.group_memory import read_group
from magnitude.board.memory_reading import MemoryReading
from magnitude.governor.memory_sight import sight_of

G = "sys/fs/cgroup"
MEMINFO = "MemTotal: 8000000 kB\nMemAvailable: 6000000 kB"
EDGE = {
    "proc/meminfo": MEMINFO,
    "proc/self/cgroup": "0::/edge.slice/edge-llm.service",
    f"{G}/edge.slice/memory.max": 2147483648,
    f"{G}/edge.slice/memory.current": 1700000000,
    f"{G}/edge.slice/edge-llm.service/memory.max": "max",
    f"{G}/edge.slice/edge-llm.service/memory.current": 900000000,
}
# As a kernel 6.x writes it, cut to what matters; 4 MB of the kernel's slabs can be reclaimed.
STAT = """anon 700000000
file 300000000
kernel 24000000
kernel_stack 1000000
pagetables 5000000
sock 1000000
shmem 100000000
file_mapped 90000000
file_dirty 3000000
file_writeback 2000000
inactive_file 150000000
active_file 45000000
slab_reclaimable 4000000
slab_unreclaimable 6000000"""


def test_without_a_split_the_raw_count_is_the_pressure(tmp_path: Path) -> None:
    memory = effective_memory(write_tree(tmp_path, EDGE))
    own, edge, root = memory.groups
    assert (edge.limit_bytes, edge.used_bytes, edge.pressure_bytes) == (2147483648, 1700000000, 1700000000)
    assert (own.limit_bytes, own.pressure_bytes) == (None, 900000000)
    assert (root.limit_bytes, root.used_bytes, root.pressure_bytes) == (None, None, None)
    sight = sight_of(MemoryReading(memory=memory, groups=memory.groups))
    assert (sight.limit_bytes, sight.pressure_bytes) == (2147483648, 1700000000)
    assert sight.limit_path == str(tmp_path / G / "edge.slice")
    assert sight.room_bytes == memory.headroom_bytes == 447483648


def test_pressure_is_what_only_processes_can_give_back(tmp_path: Path) -> None:
    write_tree(tmp_path, {"g/memory.max": 2147483648, "g/memory.current": 1030000000, "g/memory.stat": STAT})
    group = read_group(tmp_path / "g", 2)
    assert group.pressure_bytes == 700000000 + 100000000 + (24000000 - 4000000) + 1000000
    assert group.file_bytes == 300000000 - 100000000 - 3000000 - 2000000


def test_a_kernel_without_a_sum_of_its_memory_has_it_added_up(tmp_path: Path) -> None:
    older = "\n".join(line for line in STAT.splitlines() if not line.startswith("kernel "))
    write_tree(tmp_path, {"g/memory.current": 1030000000, "g/memory.stat": older})
    group = read_group(tmp_path / "g", 2)
    assert group.pressure_bytes == 700000000 + 100000000 + (1000000 + 5000000 + 6000000) + 1000000


def test_the_raw_count_is_above_the_pressure_whatever_the_split_says(tmp_path: Path) -> None:
    write_tree(tmp_path, {"g/memory.current": 600000000, "g/memory.stat": STAT})
    assert read_group(tmp_path / "g", 2).pressure_bytes == 600000000


def test_version_1_pressure_leaves_pages_of_files_out(tmp_path: Path) -> None:
    stat = "total_rss 400000000\ntotal_inactive_file 80000000\ntotal_active_file 20000000\ntotal_dirty 1000000"
    tree = {
        "g/memory.limit_in_bytes": 1000000000,
        "g/memory.usage_in_bytes": 550000000,
        "g/memory.stat": stat,
    }
    write_tree(tmp_path, tree)
    group = read_group(tmp_path / "g", 1)
    assert (group.limit_bytes, group.pressure_bytes, group.file_bytes) == (1000000000, 450000000, 99000000)


def test_a_kernel_without_the_memory_controller_is_told_from_one_without_a_limit(tmp_path: Path) -> None:
    absent = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/system.slice/magnitude.service",
        f"{G}/cgroup.controllers": "cpuset cpu io pids",
        f"{G}/system.slice/magnitude.service/cgroup.controllers": "cpu pids",
    }
    memory = effective_memory(write_tree(tmp_path / "absent", absent))
    assert (memory.controller, memory.limit_path) == (False, None)
    there = {**absent, f"{G}/cgroup.controllers": "cpuset cpu io memory pids"}
    memory = effective_memory(write_tree(tmp_path / "there", there))
    assert (memory.controller, memory.limit_path) == (True, None)
