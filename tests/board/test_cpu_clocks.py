from __future__ import annotations

from pathlib import Path

from sensor_trees import look

from kernel_trees import write_tree
from magnitude.board.clocks import find_policies

C = "sys/devices/system/cpu"


def policy(name: str, **files: str | int) -> dict[str, str | int]:
    return {f"{C}/cpufreq/{name}/{file}": content for file, content in files.items()}


def rk3588() -> dict[str, str | int]:
    """Eight cores in three policies, the last core offline."""
    return {
        f"{C}/online": "0-6",
        **policy("policy0", affected_cpus="0 1 2 3", related_cpus="0 1 2 3", cpuinfo_max_freq=1800000),
        **policy("policy4", affected_cpus="4 5", related_cpus="4 5", cpuinfo_max_freq=2400000),
        **policy(
            "policy6",
            affected_cpus="6",
            related_cpus="6 7",
            cpuinfo_min_freq=408000,
            cpuinfo_max_freq=2400000,
            scaling_available_frequencies="2400000 408000 816000",
            scaling_boost_frequencies="2500000",
            scaling_max_freq=816000,
            scaling_cur_freq=408000,
            scaling_governor="ondemand",
        ),
    }


def test_cpus_belong_to_the_policy_that_affects_them(tmp_path: Path) -> None:
    found = [reader.read() for reader in find_policies(write_tree(tmp_path, rk3588()))]
    assert [(each.name, each.cpus) for each in found] == [
        ("policy0", (0, 1, 2, 3)),
        ("policy4", (4, 5)),
        ("policy6", (6,)),
    ]
    last = found[-1]
    assert last.opps_khz == (408000, 816000, 2400000, 2500000)
    assert (last.min_khz, last.max_khz, last.cap_khz, last.cur_khz) == (408000, 2400000, 816000, 408000)
    assert (last.governor, last.writable) == ("ondemand", True)


def test_policies_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    tree = {f"{C}/online": "0-12"}
    for number in (10, 2, 0, 12):
        tree |= policy(f"policy{number}", affected_cpus=number)  # type: ignore[arg-type]
    names = [reader.read().name for reader in find_policies(write_tree(tmp_path, tree))]
    assert names == ["policy0", "policy2", "policy10", "policy12"]


def test_related_cpus_that_are_online_stand_in_for_affected_ones(tmp_path: Path) -> None:
    tree = {f"{C}/online": "0-6", **policy("policy6", related_cpus="6 7")}
    (reader,) = find_policies(write_tree(tmp_path, tree))
    assert reader.read().cpus == (6,)


def test_a_policy_without_a_cpu_that_runs_is_left_out(tmp_path: Path) -> None:
    tree = {f"{C}/online": "0-3", **policy("policy4", affected_cpus="", related_cpus="4 5")}
    assert find_policies(write_tree(tmp_path, tree)) == ()


def test_zero_and_missing_files_are_unknown(tmp_path: Path) -> None:
    tree = {
        f"{C}/online": "0",
        **policy("policy0", affected_cpus="0", cpuinfo_min_freq=0, cpuinfo_max_freq=0, scaling_cur_freq="<unknown>"),
    }
    (reader,) = find_policies(write_tree(tmp_path, tree))
    clock = reader.read()
    assert (clock.min_khz, clock.max_khz, clock.cap_khz, clock.cur_khz) == (None, None, None, None)
    assert (clock.opps_khz, clock.governor, clock.writable) == ((), "", False)


def test_a_policy_whose_files_fail_costs_only_itself(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, rk3588())
    for name in ("scaling_cur_freq", "cpuinfo_max_freq", "scaling_max_freq"):
        broken = tmp_path / C / "cpufreq/policy6" / name
        broken.unlink()
        broken.symlink_to("/proc/self/mem")  # reading fails with EIO
    clocks = look(roots, "rock5b").clocks
    assert [clock.max_khz for clock in clocks] == [1800000, 2400000, None]
    assert clocks[2].cur_khz is None


def test_a_machine_without_cpufreq_has_no_clocks(tmp_path: Path) -> None:
    (tmp_path / C / "cpufreq").mkdir(parents=True)
    assert look(write_tree(tmp_path, {f"{C}/online": "0-1"})).clocks == ()


def test_a_limit_that_changes_is_seen_at_the_next_read(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, rk3588())
    reader = find_policies(roots)[-1]
    assert reader.read().cap_khz == 816000
    write_tree(tmp_path, policy("policy6", scaling_max_freq=2400000))
    assert reader.read().cap_khz == 2400000
