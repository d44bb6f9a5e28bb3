"""What the measurement of sampling measures."""

from pathlib import Path

import pytest

from bench.sampler import DEVICES, POLICIES, ZONES, measure, write_board
from magnitude.board.profiles import load_profile
from magnitude.board.sampler import Sampler

ROCK = load_profile("rock5b")


def test_the_tree_is_a_whole_board(tmp_path: Path) -> None:
    sampler = Sampler(write_board(tmp_path), ROCK)
    snapshot = sampler.read(1.0)
    sampler.close()
    assert len(snapshot.temps) == len(ZONES)
    assert not [temp for temp in snapshot.temps if temp.fault]
    assert (len(snapshot.clocks), len(snapshot.devices), len(snapshot.fans)) == (len(POLICIES), len(DEVICES), 1)
    assert snapshot.usable_threads == 4


@pytest.mark.parametrize("calm", [False, True])
def test_it_counts_the_snapshots_of_its_time(tmp_path: Path, calm: bool) -> None:
    cost = measure("here", write_board(tmp_path), ROCK, calm=calm, wall_s=0.5)
    assert cost.sensors == len(ZONES)
    assert cost.snapshots <= 2 if calm else cost.snapshots >= 1
    assert 0 <= cost.share <= 2
