from __future__ import annotations

import errno
import itertools
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulty_files import Faults, PlainFile
from sensor_trees import T, look, sensor, write_drivers, write_zones

from kernel_trees import write_tree
from magnitude.board.cpu import EngineCpus
from magnitude.board.memory_reading import MemoryReader
from magnitude.board.profiles import load_profile
from magnitude.board.roots import HostRoots
from magnitude.board.sampler import LOOK_ANEW_S, Sampler
from magnitude.board.sampling_rate import CALM_S, FAST_S
from magnitude.board.sim.board import SimulatedBoard
from magnitude.board.sim.tree import BoardTree
from magnitude.board.snapshot import Snapshot
from magnitude.board.sources import ALLOWANCE_S
from magnitude.errors import ConfigError

PATIENCE_S = 30.0
ARM = load_profile("generic-arm")
BOARD = {"cpu-thermal": 51200, "gpu-thermal": 48000, "board-thermal": 40000}


class Run:
    """A sampler in time of its own: no thread of the sampler's, no waiting."""

    def __init__(
        self,
        roots: HostRoots,
        faults: Faults | None = None,
        limit_s: float = 0.02,
        engine_pid: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.now_s = 0.0
        self.faults = faults or Faults()
        self.sampler = Sampler(
            roots,
            ARM,
            clock=lambda: self.now_s,
            files=self.faults.open,
            limit_s=limit_s,
            engine_pid=engine_pid,
        )
        self.seen: list[Snapshot] = []
        self.sampler.on_snapshot = self.seen.append

    def go(self, for_s: float) -> Snapshot:
        """Until then; the last snapshot."""
        ends_s = self.now_s + for_s
        while self.now_s < ends_s:
            self.now_s += max(0.001, self.sampler.tick(self.now_s))
        return self.seen[-1]


@pytest.fixture
def faults() -> Iterator[Faults]:
    made = Faults()
    yield made
    made.release()


def periods(run: Run) -> list[float]:
    times = [snapshot.at_s for snapshot in run.seen]
    return [round(later - earlier, 6) for earlier, later in itertools.pairwise(times)]


def until(run: Run, step_s: float, reached: Callable[[Snapshot], bool]) -> Snapshot:
    """Go on until it is so. What a thread of the sampler's has to do with it takes real time."""
    wait = threading.Event()
    for _ in range(1000):
        if reached(run.go(step_s)):
            break
        wait.wait(0.01)
    return run.seen[-1]


def names(snapshot: Snapshot) -> set[str]:
    return {temp.name for temp in snapshot.temps}


# --- one bad sensor ---


@pytest.mark.parametrize("fault", ["EAGAIN", "EIO", "ENODATA", "EINVAL", "EBUSY"])
def test_a_sensor_that_fails_costs_only_itself(tmp_path: Path, faults: Faults, fault: str) -> None:
    run = Run(write_zones(tmp_path, BOARD), faults)
    faults.errors["thermal_zone1"] = fault
    run.go(3.0)
    assert {snapshot.hottest_c for snapshot in run.seen} == {51.2}
    bad = sensor(run.seen[-1], "gpu-thermal")
    assert (bad.temp_c, bad.age_s, bad.fault) == (None, None, fault)


def test_files_that_really_fail_cost_only_themselves(tmp_path: Path) -> None:
    roots = write_zones(tmp_path, {**BOARD, "npu-thermal": "", "ddr-thermal": 1, "vpu-thermal": 1, "isp-thermal": 1})
    zones = tmp_path / T
    for number in (4, 5, 6):
        (zones / f"thermal_zone{number}/temp").unlink()
    (zones / "thermal_zone4/temp").symlink_to("/proc/self/mem")  # EIO
    os.mkfifo(zones / "thermal_zone5/temp")
    writer = os.open(zones / "thermal_zone5/temp", os.O_RDWR | os.O_NONBLOCK)  # nothing to read, and no end of file
    try:
        snapshot = look(roots)
    finally:
        os.close(writer)
    assert snapshot.hottest_c == 51.2
    faults = {temp.name: temp.fault for temp in snapshot.temps if temp.fault}
    assert faults["npu-thermal"] == "empty"
    assert faults["ddr-thermal"] == "EIO"
    assert faults["vpu-thermal"] in errno.errorcode.values()
    assert faults["isp-thermal"] == "ENOENT"


def test_a_sensor_that_stops_answering_keeps_its_last_value_and_its_age(tmp_path: Path, faults: Faults) -> None:
    run = Run(write_zones(tmp_path, BOARD), faults)
    run.go(1.0)
    faults.errors["thermal_zone0"] = "EAGAIN"
    lost = run.go(5.0)
    cpu = sensor(lost, "cpu-thermal")
    assert (cpu.temp_c, cpu.fault) == (51.2, "EAGAIN")
    assert cpu.age_s == pytest.approx(5.0, abs=0.3)
    # What is so old says nothing about now, and is no 0 either.
    assert lost.hottest_c is None
    faults.errors.clear()
    back = run.go(1.0)
    assert (back.hottest_c, sensor(back, "cpu-thermal").fault) == (51.2, "")


def test_a_change_of_state_is_one_line(tmp_path: Path, faults: Faults, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(write_zones(tmp_path, BOARD), faults)
    with caplog.at_level(logging.INFO, "magnitude.sensors"):
        run.go(1.0)
        for fault in ("EAGAIN", "ENODATA"):
            faults.errors["thermal_zone1"] = fault
            run.go(2 * LOOK_ANEW_S)  # also over looking for sensors anew
        faults.errors.clear()
        run.go(5.0)
    assert [record.getMessage() for record in caplog.records] == [
        "the sensor gpu-thermal gives no sample: EAGAIN",
        "the sensor gpu-thermal answers again",
    ]


def test_a_zone_that_vanishes_is_no_sample_and_then_forgotten(tmp_path: Path) -> None:
    run = Run(write_zones(tmp_path, BOARD))
    run.go(1.0)
    shutil.rmtree(tmp_path / T / "thermal_zone1")
    without = run.go(1.0)
    assert (without.hottest_c, sensor(without, "gpu-thermal").temp_c) == (51.2, 48.0)
    assert sensor(without, "gpu-thermal").fault in ("ENODEV", "ENOENT")
    run.sampler.changed()
    left = {"board-thermal", "cpu-thermal"}
    assert names(until(run, 0.2, lambda snapshot: names(snapshot) == left)) == left


def test_a_zone_that_vanishes_between_listing_and_reading_costs_only_itself(tmp_path: Path) -> None:
    roots = write_zones(tmp_path, BOARD)
    (tmp_path / T / "thermal_zone1/temp").unlink()
    (tmp_path / T / "thermal_zone9").symlink_to(tmp_path / "nowhere")
    assert look(roots).hottest_c == 51.2


# --- one that never answers ---


def test_a_sensor_that_hangs_costs_neither_the_others_nor_more_than_one_thread(
    tmp_path: Path, faults: Faults
) -> None:
    run = Run(write_zones(tmp_path, BOARD), faults)
    faults.blocks.add("thermal_zone1")
    run.go(20.0)
    assert {snapshot.hottest_c for snapshot in run.seen} == {51.2}
    assert sensor(run.seen[-1], "gpu-thermal").fault == "no answer"
    assert faults.reads["thermal_zone1"] == 1
    assert faults.reads["thermal_zone0"] > 50


def test_a_file_that_holds_whoever_opens_it_is_a_sensor_that_does_not_answer(tmp_path: Path) -> None:
    roots = write_zones(tmp_path, BOARD)
    fifo = tmp_path / T / "thermal_zone1/temp"
    fifo.unlink()
    os.mkfifo(fifo)
    sampler = Sampler(roots, ARM, files=PlainFile, limit_s=0.05)
    snapshot = sampler.read(1.0)
    assert (snapshot.hottest_c, sensor(snapshot, "gpu-thermal").fault) == (51.2, "no answer")
    sampler.close()
    fifo.write_text("48000\n")  # lets the thread go


def test_a_sensor_that_answers_in_the_end_counts_again(tmp_path: Path, faults: Faults) -> None:
    run = Run(write_zones(tmp_path, BOARD), faults)
    faults.blocks.add("thermal_zone0")
    assert run.go(5.0).hottest_c is None
    faults.release()
    assert until(run, 0.5, lambda snapshot: snapshot.hottest_c == 51.2).hottest_c == 51.2


def test_drivers_stand_in_for_zones_that_are_lost(tmp_path: Path, faults: Faults) -> None:
    write_drivers(tmp_path, {4: ("cpu_thermal", 53000)})
    run = Run(write_zones(tmp_path, BOARD), faults)
    run.go(2.0)
    assert "hwmon4" not in faults.reads
    faults.errors["thermal_zone0"] = "EAGAIN"
    assert run.go(5.0).hottest_c == 53.0
    faults.errors.clear()
    assert run.go(5.0).hottest_c == 51.2


# --- how often ---


def test_each_place_is_read_at_its_own_rate(tmp_path: Path) -> None:
    run = Run(write_zones(tmp_path, BOARD))
    for _ in range(60):
        run.sampler.hurry()
        run.go(1.0)
    reads = run.faults.reads
    assert reads["thermal_zone0"] == pytest.approx(600, rel=0.05)
    assert reads["thermal_zone1"] == pytest.approx(400, rel=0.05)
    assert reads["thermal_zone2"] == pytest.approx(300, rel=0.05)


def test_where_nothing_moves_it_looks_less_often_until_it_is_told_to_hurry(tmp_path: Path) -> None:
    run = Run(write_zones(tmp_path, BOARD))
    run.go(5.0)
    assert set(periods(run)) == {FAST_S}
    run.go(115.0)
    assert set(periods(run)[-10:]) == {CALM_S}
    run.sampler.hurry()
    run.sampler.tick(run.now_s)
    count = len(run.seen)
    run.go(5.0)
    assert len(run.seen) - count >= 45


def test_what_is_fresh_at_the_slowest_rate_is_taken_for_fresh(tmp_path: Path) -> None:
    run = Run(write_zones(tmp_path, BOARD))
    run.go(300.0)
    assert all(snapshot.hottest_c == 51.2 for snapshot in run.seen)
    assert len({snapshot.fused_c for snapshot in run.seen}) == 1


def test_a_move_at_the_slow_rate_brings_the_fast_one_back(tmp_path: Path) -> None:
    run = Run(write_zones(tmp_path, BOARD))
    run.go(120.0)
    write_zones(tmp_path, {"cpu-thermal": 60000})
    run.go(6.0)
    assert periods(run)[-1] == FAST_S
    assert run.seen[-1].hottest_c == 60.0


def test_a_rate_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="100 ms"):
        Sampler(HostRoots.under(tmp_path), ARM, period_s=0.05)


# --- everything else ---


def test_a_device_that_comes_is_seen_when_told_and_anyway_within_a_minute(tmp_path: Path) -> None:
    run = Run(write_zones(tmp_path, BOARD))
    run.go(1.0)
    write_zones(tmp_path, {**BOARD, "npu-thermal": 70000})
    assert len(run.go(1.0).temps) == 3
    run.sampler.changed()
    assert len(until(run, 0.2, lambda snapshot: len(snapshot.temps) == 4).temps) == 4
    write_zones(tmp_path, {**BOARD, "npu-thermal": 70000, "soc-thermal": 50000})
    assert len(until(run, LOOK_ANEW_S, lambda snapshot: len(snapshot.temps) == 5).temps) == 5


@pytest.mark.parametrize("name", ["pi5-bare", "pi5-cooler", "rock5b", "generic-arm", "generic-x86"])
@pytest.mark.parametrize("naming", [0, 1])
def test_a_simulated_board_is_read_as_it_is(tmp_path: Path, name: str, naming: int) -> None:
    profile = load_profile(name)
    board = SimulatedBoard(profile)
    shown = board.snapshot()
    tree = BoardTree(tmp_path, profile, shown, naming=naming)
    sampler = Sampler(tree.roots, profile)
    read = sampler.read(5.0)
    assert read.hottest_c == pytest.approx(shown.hottest_c, abs=0.001)
    assert [(c.name, c.cpus, c.opps_khz, c.cap_khz) for c in read.clocks] == [
        (c.name, c.cpus, c.opps_khz, c.cap_khz) for c in shown.clocks
    ]
    assert read.online == tuple(sorted(cpu for cluster in profile.clusters for cpu in cluster.cpus))
    assert read.firmware.now == shown.firmware.now
    assert [(fan.name, fan.state) for fan in read.fans] == [(fan.name, fan.state) for fan in shown.fans]
    sampler.close()
    tree.close()


def test_threads_are_the_big_cores_that_run(tmp_path: Path) -> None:
    cpus = "sys/devices/system/cpu"
    tree: dict[str, str | int] = {f"{cpus}/online": "0-6", f"{cpus}/cpu7/online": 0}
    tree |= {f"{cpus}/cpu{cpu}/cpu_capacity": 414 if cpu < 4 else 1024 for cpu in range(8)}
    roots = write_tree(tmp_path, tree)
    assert look(roots, "rock5b").usable_threads == 3
    write_tree(tmp_path, {f"{cpus}/online": "0-7"})
    assert look(roots, "rock5b").usable_threads == 4


def test_the_engines_own_group_is_seen_and_a_quota_that_changes_within_seconds(tmp_path: Path) -> None:
    cpus, group = "sys/devices/system/cpu", "sys/fs/cgroup"
    tree: dict[str, str | int] = {f"{cpus}/online": "0-7"}
    tree |= {f"{cpus}/cpu{cpu}/cpu_capacity": 414 if cpu < 4 else 1024 for cpu in range(8)}
    tree |= {"proc/self/cgroup": "0::/unit/service", "proc/77/cgroup": "0::/unit/engine"}
    tree |= {f"{group}/unit/service/cpu.max": "max 100000", f"{group}/unit/engine/cpu.max": "max 100000"}
    roots = write_zones(tmp_path, BOARD)
    write_tree(tmp_path, tree)
    pid: list[int | None] = [None]
    run = Run(roots, engine_pid=lambda: pid[0])
    assert run.go(1.0).engine == EngineCpus(cores=(4, 5, 6, 7, 0, 1, 2, 3), big=4, usable=8)
    pid[0] = 77
    write_tree(tmp_path, {f"{group}/unit/engine/cpu.max": "150000 100000"})
    assert until(run, ALLOWANCE_S + 1.0, lambda snapshot: snapshot.engine.usable == 1).engine.big == 4
    write_tree(tmp_path, {f"{group}/unit/engine/cpu.max": "300000 100000"})
    until(run, ALLOWANCE_S + 1.0, lambda snapshot: snapshot.engine.usable == 3)


def test_the_latest_reading_of_memory_goes_with_the_snapshot(tmp_path: Path) -> None:
    run = Run(write_zones(tmp_path, BOARD))
    assert run.go(0.5).memory is None
    reading = MemoryReader(HostRoots.under(tmp_path)).read()
    run.sampler.note_memory(reading)
    assert run.go(0.5).memory is reading


def test_the_thread_makes_snapshots_until_it_is_stopped(tmp_path: Path) -> None:
    sampler = Sampler(write_zones(tmp_path, BOARD), ARM)
    assert sampler.latest() is None
    seen, enough = [], threading.Event()

    def took(snapshot: Snapshot) -> None:
        seen.append(snapshot)
        if len(seen) >= 3:
            enough.set()

    sampler.on_snapshot = took
    sampler.start()
    assert enough.wait(PATIENCE_S)
    latest = sampler.latest()
    assert latest is not None
    assert latest.hottest_c == 51.2
    thread = next(thread for thread in threading.enumerate() if thread.name == "board" and thread.is_alive())
    sampler.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_listener_that_fails_does_not_end_the_looking(tmp_path: Path) -> None:
    sampler = Sampler(write_zones(tmp_path, BOARD), ARM)
    calls, again = [], threading.Event()

    def fails(snapshot: Snapshot) -> None:
        calls.append(snapshot)
        if len(calls) >= 2:
            again.set()
        raise RuntimeError("no")

    sampler.on_snapshot = fails
    sampler.start()
    assert again.wait(PATIENCE_S)
    sampler.stop()


def test_a_look_once_leaves_no_thread_and_no_file_behind(tmp_path: Path) -> None:
    roots = write_zones(tmp_path, BOARD)

    def held() -> list[str]:
        links = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        return [str(link) for link in links if link.is_relative_to(tmp_path)]

    look(roots)
    assert held() == []
