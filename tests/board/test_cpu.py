from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_trees import write_tree
from magnitude.board import (
    compute_cpus,
    cpu_features,
    cpu_quota,
    parse_cpu_list,
    read_cpu,
    topology,
    usable_threads,
)
from magnitude.board.cpu import (
    Cluster,
    EngineCpus,
    Topology,
    cpu_list,
    engine_cpus,
    parse_size,
    thread_affinity,
)
from magnitude.board.roots import HostRoots

C = "sys/devices/system/cpu"
G = "sys/fs/cgroup"


def rk3588() -> dict[str, str | int]:
    """Eight cores in two speeds, the last one offline."""
    tree: dict[str, str | int] = {f"{C}/online": "0-6", f"{C}/cpu7/online": 0}
    for cpu in range(8):
        tree[f"{C}/cpu{cpu}/cpu_capacity"] = 414 if cpu < 4 else 1024
        if cpu < 7:
            tree[f"{C}/cpu{cpu}/cpufreq/cpuinfo_max_freq"] = 1800000 if cpu < 4 else 2400000
    return tree


def pi5() -> dict[str, str | int]:
    return {
        f"{C}/online": "0-3",
        **{f"{C}/cpu{cpu}/cpufreq/cpuinfo_max_freq": 2400000 for cpu in range(4)},
    }


def test_the_big_cores_that_are_online_do_the_work(tmp_path: Path) -> None:
    board = topology(write_tree(tmp_path, rk3588()))
    assert board.online == (0, 1, 2, 3, 4, 5, 6)
    assert [cluster.cpus for cluster in board.clusters] == [(4, 5, 6), (0, 1, 2, 3)]
    assert compute_cpus(board, board.online) == (4, 5, 6)
    assert board.clusters[0].max_freq_khz == 2400000


def test_an_offline_core_whose_files_fail_does_not_fail_the_reader(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, {**rk3588(), f"{C}/online": "0-7"})
    broken = tmp_path / C / "cpu7/cpufreq/cpuinfo_max_freq"
    broken.parent.mkdir(parents=True)
    broken.symlink_to("/proc/self/mem")  # reading fails with EIO, as a busy driver's file does
    board = topology(roots)
    assert compute_cpus(board, board.online) == (4, 5, 6, 7)


@pytest.mark.parametrize("file", ["cpu_capacity", "cpufreq/cpuinfo_max_freq"])
def test_what_one_cores_files_do_not_say_a_core_of_the_same_clock_does(tmp_path: Path, file: str) -> None:
    told = {name: value for name, value in rk3588().items() if name.endswith(file)}
    groups = {f"{C}/cpufreq/policy{cpus[0]}/related_cpus": cpus for cpus in ("0 1 2 3", "4 5", "6 7")}
    roots = write_tree(tmp_path, {**told, **groups, f"{C}/online": "0-7"})
    broken = tmp_path / C / "cpu7" / file
    broken.parent.mkdir(parents=True, exist_ok=True)
    broken.unlink(missing_ok=True)
    broken.symlink_to("/proc/self/mem")  # reading fails with EIO, as a busy driver's file does
    assert [cluster.cpus for cluster in topology(roots).clusters] == [(4, 5, 6, 7), (0, 1, 2, 3)]


def test_caches_of_a_cluster_are_counted_once_each(tmp_path: Path) -> None:
    tree: dict[str, str | int] = {f"{C}/online": "0-3"}
    for cpu in range(4):
        for index, (level, size, shared) in enumerate(
            [(1, "64K", f"{cpu}"), (1, "64K", f"{cpu}"), (2, "512K", f"{cpu}"), (3, "2048K", "0-3")]
        ):
            folder = f"{C}/cpu{cpu}/cache/index{index}"
            tree |= {f"{folder}/level": level, f"{folder}/size": size, f"{folder}/shared_cpu_list": shared}
    (cluster,) = topology(write_tree(tmp_path, tree)).clusters
    assert (cluster.l2_bytes, cluster.l3_bytes) == (4 * 512 * 1024, 2048 * 1024)


def test_caches_that_are_not_told_are_unknown(tmp_path: Path) -> None:
    (cluster,) = topology(write_tree(tmp_path, pi5())).clusters
    assert (cluster.l2_bytes, cluster.l3_bytes) == (None, None)


@pytest.mark.parametrize(("text", "size"), [("512K", 524288), ("2M", 2097152), ("64", 64), ("", None), ("K", None)])
def test_kernel_sizes_parse(text: str, size: int | None) -> None:
    assert parse_size(text) == size


def test_a_core_that_comes_back_is_seen_at_the_next_reading(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, rk3588())
    assert len(compute_cpus(topology(roots), range(8))) == 3
    write_tree(tmp_path, {f"{C}/online": "0-7"})
    assert len(compute_cpus(topology(roots), range(8))) == 4


def test_equal_cores_without_capacities_are_one_cluster(tmp_path: Path) -> None:
    board = topology(write_tree(tmp_path, pi5()))
    assert [cluster.cpus for cluster in board.clusters] == [(0, 1, 2, 3)]
    assert compute_cpus(board, board.online) == (0, 1, 2, 3)


def test_clocks_tell_clusters_apart_when_capacities_are_missing(tmp_path: Path) -> None:
    tree = {name: value for name, value in rk3588().items() if not name.endswith("cpu_capacity")}
    board = topology(write_tree(tmp_path, tree))
    assert [cluster.cpus for cluster in board.clusters] == [(4, 5, 6), (0, 1, 2, 3)]


def test_without_any_measure_all_online_cores_are_alike(tmp_path: Path) -> None:
    board = topology(write_tree(tmp_path, {f"{C}/online": "0-3,6"}))
    assert compute_cpus(board, board.online) == (0, 1, 2, 3, 6)


def test_missing_cpu_lists_in_sysfs_fall_back_to_the_affinity(tmp_path: Path) -> None:
    cpu = read_cpu(write_tree(tmp_path, {}))
    assert cpu.topology.online == cpu.affinity
    assert cpu.threads >= 1


def test_an_affinity_of_little_cores_is_used_as_it_is(tmp_path: Path) -> None:
    board = topology(write_tree(tmp_path, rk3588()))
    assert compute_cpus(board, {1, 2}) == (1, 2)


def test_cores_nearly_as_fast_are_used_together(tmp_path: Path) -> None:
    tree: dict[str, str | int] = {f"{C}/online": "0-3"}
    for cpu, capacity in enumerate((1024, 1024, 900, 900)):
        tree[f"{C}/cpu{cpu}/cpu_capacity"] = capacity
    board = topology(write_tree(tmp_path, tree))
    assert compute_cpus(board, board.online) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("limit", "threads"), [("150000 100000", 1), ("50000 100000", 1), ("max 100000", 2), ("400000 100000", 2)]
)
def test_threads_fit_both_the_affinity_and_the_quota(tmp_path: Path, limit: str, threads: int) -> None:
    tree = {f"{C}/online": "0-7", "proc/self/cgroup": "0::/a", f"{G}/a/cpu.max": limit}
    assert read_cpu(write_tree(tmp_path, tree), affinity={2, 3}).threads == threads


def test_the_tightest_quota_of_all_ancestors_counts(tmp_path: Path) -> None:
    tree = {
        "proc/self/cgroup": "0::/a/b/c",
        f"{G}/a/cpu.max": "150000 100000",
        f"{G}/a/b/cpu.max": "800000 100000",
        f"{G}/a/b/c/cpu.max": "max 100000",
    }
    assert cpu_quota(write_tree(tmp_path, tree)) == 1.5


@pytest.mark.parametrize(("quota", "expected"), [(250000, 2.5), (-1, None)])
def test_version_1_quotas_are_read_where_the_controller_is_mounted(
    tmp_path: Path, quota: int, expected: float | None
) -> None:
    tree = {
        "proc/self/cgroup": "3:cpu,cpuacct:/a",
        f"{G}/cpu,cpuacct/a/cpu.cfs_quota_us": quota,
        f"{G}/cpu,cpuacct/a/cpu.cfs_period_us": 100000,
    }
    assert cpu_quota(write_tree(tmp_path, tree)) == expected


def test_another_process_has_the_quota_of_its_own_group(tmp_path: Path) -> None:
    tree = {
        "proc/self/cgroup": "0::/service",
        "proc/77/cgroup": "0::/engine",
        f"{G}/service/cpu.max": "max 100000",
        f"{G}/engine/cpu.max": "50000 100000",
    }
    roots = write_tree(tmp_path, tree)
    assert (cpu_quota(roots), cpu_quota(roots, 77)) == (None, 0.5)


def test_the_cpus_of_all_threads_together_are_the_processs() -> None:
    bound, done = threading.Event(), threading.Event()
    mine = os.sched_getaffinity(0)

    def bound_to_one() -> None:
        os.sched_setaffinity(0, {min(mine)})
        bound.set()
        done.wait(30)

    thread = threading.Thread(target=bound_to_one)
    thread.start()
    try:
        assert bound.wait(30)
        assert thread_affinity(HostRoots(), os.getpid()) == mine
    finally:
        done.set()
        thread.join()


def test_a_process_that_is_gone_has_no_cpus(tmp_path: Path) -> None:
    assert thread_affinity(HostRoots.under(tmp_path), 77) == frozenset()


def test_an_engines_cpus_are_those_online_the_fastest_first() -> None:
    board = Topology(
        online=(0, 1, 4, 5),
        clusters=(Cluster(cpus=(4, 5), speed=9, max_freq_khz=None), Cluster(cpus=(0, 1), speed=4, max_freq_khz=None)),
    )
    assert engine_cpus(board, range(8), None) == EngineCpus(cores=(4, 5, 0, 1), big=2, usable=4)
    assert engine_cpus(board, {0, 1, 4}, 2.9) == EngineCpus(cores=(4, 0, 1), big=1, usable=2)
    assert engine_cpus(board, {0, 7}, 0.5) == EngineCpus(cores=(0,), big=1, usable=1)
    assert engine_cpus(board, set(), None) == EngineCpus(cores=(), big=0, usable=1)


@pytest.mark.parametrize("text", ["", "max", "x y", "100000", "100000 0", "-1 100000"])
def test_a_quota_that_makes_no_sense_is_no_quota(tmp_path: Path, text: str) -> None:
    tree = {"proc/self/cgroup": "0::/", f"{G}/cpu.max": text}
    assert cpu_quota(write_tree(tmp_path, tree)) is None


@given(st.integers(1, 256), st.none() | st.floats(0, 300))
def test_there_is_always_a_thread_and_never_more_than_cpus(cpus: int, quota: float | None) -> None:
    threads = usable_threads(cpus, quota)
    assert 1 <= threads <= cpus
    assert quota is None or threads == 1 or threads <= quota


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,6", (0, 1, 2, 3, 6)), ("0", (0,)), ("0-3\n", (0, 1, 2, 3)), ("", ()), ("2,1", (1, 2)), ("0-x,4", (4,))],
)
def test_kernel_cpu_lists_parse(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


@given(st.sets(st.integers(0, 511)))
def test_any_set_of_cpus_survives_the_list_notation(cpus: set[int]) -> None:
    assert parse_cpu_list(",".join(map(str, cpus))) == tuple(sorted(cpus))
    assert parse_cpu_list(cpu_list(cpus)) == tuple(sorted(cpus))


def test_arm_features_are_those_that_every_core_has(tmp_path: Path) -> None:
    text = (
        "processor\t: 0\nFeatures\t: fp asimd asimdhp asimddp crc32\n\nprocessor\t: 4\nFeatures\t: asimd asimddp i8mm"
    )
    assert cpu_features(write_tree(tmp_path, {"proc/cpuinfo": text})) == ("asimd", "asimddp")


def test_x86_features_are_found_under_flags(tmp_path: Path) -> None:
    text = "flags\t\t: fpu sse2 avx2 avx512_vnni avx_vnni\n"
    assert cpu_features(write_tree(tmp_path, {"proc/cpuinfo": text})) == ("avx2", "avx512_vnni", "avx_vnni")


def test_no_cpuinfo_means_no_known_feature(tmp_path: Path) -> None:
    assert cpu_features(write_tree(tmp_path, {})) == ()
