"""A simulated board's files, looked at and written to as the kernel's are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from magnitude.board.cpu import compute_cpus, topology
from magnitude.board.profiles import find_profile, load_profile
from magnitude.board.roots import read_int, read_text
from magnitude.board.sim.tree import THROTTLED, BoardTree
from magnitude.board.snapshot import ClockPolicy, Fan, Firmware, FirmwareFlags, Snapshot, TempSensor
from processor_heat import processor_temp_c

POLICY = "devices/system/cpu/cpufreq/policy0"


def sight(temp_c: float = 50.0, *, cap_khz: int = 2_400_000, cur_khz: int = 1_500_000, **fields: object) -> Snapshot:
    plain = Snapshot(
        at_s=0.0,
        temps=(TempSensor(name="cpu-thermal", kind="cpu", temp_c=temp_c),),
        clocks=(ClockPolicy(name="policy0", cpus=(0, 1, 2, 3), cap_khz=cap_khz, cur_khz=cur_khz),),
        firmware=Firmware(now=FirmwareFlags(), since_boot=FirmwareFlags()),
    )
    return msgspec.structs.replace(plain, **fields)


@pytest.fixture
def pi(tmp_path: Path) -> Iterator[BoardTree]:
    tree = BoardTree(tmp_path / "board", load_profile("pi5-bare"), sight())
    yield tree
    tree.close()


def limit(tree: BoardTree) -> Path:
    return tree.roots.sys / POLICY / "scaling_max_freq"


def test_it_is_read_as_the_board_that_it_simulates(pi: BoardTree):
    assert find_profile(pi.roots).name == "pi5-bare"
    board = topology(pi.roots)
    assert board.online == (0, 1, 2, 3)
    assert [cluster.max_freq_khz for cluster in board.clusters] == [2_400_000]
    assert processor_temp_c(pi.roots) == 50.0


def test_its_figures_move(pi: BoardTree):
    pi.show(sight(81.234, cur_khz=2_400_000))
    assert read_int(pi.roots.sys / "class/thermal/thermal_zone0/temp") == 81234
    assert read_int(pi.roots.sys / "class/hwmon/hwmon0/temp1_input") == 81234
    assert read_int(pi.roots.sys / POLICY / "scaling_cur_freq") == 2_400_000


def test_a_reader_that_keeps_a_file_open_sees_it_move_and_never_empty(pi: BoardTree):
    with (pi.roots.sys / "class/thermal/thermal_zone0/temp").open("rb") as file:
        for temp_c in (99.5, -0.001, 100.25, 7.0):
            pi.show(sight(temp_c))
            assert int(os.pread(file.fileno(), 64, 0)) == round(temp_c * 1000)


def test_the_firmwares_word_has_now_and_since_boot(pi: BoardTree):
    assert read_text(pi.roots.sys / THROTTLED) == "0"
    now, since = FirmwareFlags(soft_limit=True, throttled=True), FirmwareFlags(under_voltage=True, soft_limit=True)
    pi.show(sight(firmware=Firmware(now=now, since_boot=since)))
    assert read_text(pi.roots.sys / THROTTLED) == "9000c"


@pytest.mark.parametrize(
    ("written", "holds", "asked"),
    [
        ("1800000\n", 1_800_000, 1_800_000),
        ("1850000", 1_800_000, 1_800_000),  # the operating point below
        ("1\n", 1_500_000, 1_500_000),
        ("9999999\n", 2_400_000, None),
        ("2400000\n", 2_400_000, None),
        ("fast\n", 2_400_000, None),
        ("-5\n", 2_400_000, None),
        ("٣\n", 2_400_000, None),
    ],
)
def test_a_written_limit_holds_as_cpufreq_lets_it(pi: BoardTree, written: str, holds: int, asked: int | None):
    limit(pi).write_text(written)
    assert pi.read_back() == {"policy0": asked}
    assert read_int(limit(pi)) == holds


def test_a_limit_stays_until_another_one_is_written(pi: BoardTree):
    limit(pi).write_text("1500000\n")
    assert pi.read_back() == pi.read_back() == {"policy0": 1_500_000}
    pi.show(sight(cap_khz=1_500_000))
    limit(pi).write_text("nonsense")
    assert pi.read_back() == {"policy0": 1_500_000}
    limit(pi).write_text("2400000\n")
    assert pi.read_back() == {"policy0": None}


def test_a_write_that_is_not_done_is_left_alone(pi: BoardTree):
    with limit(pi).open("w") as file:
        assert pi.read_back() == {"policy0": None}
        pi.show(sight(cap_khz=2_000_000))
        assert limit(pi).read_text() == ""
        file.write("1700000\n")
    assert pi.read_back() == {"policy0": 1_700_000}


def test_what_is_written_between_two_looks_is_not_lost_to_what_is_shown(pi: BoardTree):
    limit(pi).write_text("1600000\n")
    pi.show(sight(cap_khz=2_400_000))
    assert pi.read_back() == {"policy0": 1_600_000}


def test_sensors_have_the_names_of_the_kernel_that_was_chosen(tmp_path: Path):
    profile = load_profile("rock5b")
    clocks = tuple(ClockPolicy(name=name, cap_khz=2_400_000, cur_khz=408_000) for name in ("policy4", "policy6"))
    temps = (TempSensor(name="soc-thermal", kind="cpu", temp_c=60.0),)
    snapshot = Snapshot(at_s=0.0, temps=temps, clocks=clocks)
    for naming, name in enumerate(["soc-thermal", "package-thermal"]):
        tree = BoardTree(tmp_path / name, profile, snapshot, naming=naming)
        kinds = [read_text(file) for file in sorted((tree.roots.sys / "class/thermal").glob("thermal_zone*/type"))]
        assert kinds == [name]
        assert processor_temp_c(tree.roots) == 60.0
        tree.close()


def test_an_rk3588_has_three_clusters_and_its_devices(tmp_path: Path):
    tree = BoardTree(tmp_path, load_profile("rock5b"), Snapshot(at_s=0.0))
    board = topology(tree.roots)
    assert compute_cpus(board, board.online) == (4, 5, 6, 7)
    assert {folder.name for folder in (tree.roots.sys / "class/devfreq").iterdir()} == {
        "dmc",
        "fb000000.gpu",
        "fdab0000.npu",
    }
    assert not (tree.roots.sys / THROTTLED).exists()
    tree.close()


def test_cooling_by_the_kernel_shows_in_the_limit_and_leaves_what_was_asked_for(tmp_path: Path):
    tree = BoardTree(tmp_path, load_profile("rock5b"), Snapshot(at_s=0.0))
    opps = [opp.khz for opp in load_profile("rock5b").clusters[1].opps]
    cooled = ClockPolicy(name="policy4", cap_khz=opps[-3], cur_khz=opps[-3])
    tree.show(Snapshot(at_s=0.0, clocks=(cooled,)))
    assert read_int(tree.roots.sys / "devices/system/cpu/cpufreq/policy4/scaling_max_freq") == opps[-3]
    assert tree.read_back()["policy4"] is None
    states = {
        read_text(folder / "type"): read_int(folder / "cur_state")
        for folder in (tree.roots.sys / "class/thermal").glob("cooling_device*")
    }
    assert states["cpufreq-cpu4"] == 2
    assert states["cpufreq-cpu0"] == 0
    tree.close()


def test_a_fan_shows_its_step(tmp_path: Path):
    fan = Fan(name="pwm-fan", state=0, max_state=4)
    tree = BoardTree(tmp_path, load_profile("pi5-cooler"), sight(fans=(fan,)))
    tree.show(sight(fans=(msgspec.structs.replace(fan, state=3),)))
    folder = tree.roots.sys / "class/thermal/cooling_device0"
    assert (read_text(folder / "type"), read_int(folder / "cur_state")) == ("pwm-fan", 3)
    tree.close()


def test_a_tree_can_be_made_where_one_was_before(tmp_path: Path):
    for _ in range(2):
        tree = BoardTree(tmp_path, load_profile("pi5-bare"), sight())
        tree.close()
    assert processor_temp_c(tree.roots) == 50.0
