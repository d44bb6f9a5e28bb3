from __future__ import annotations

import pytest
from hot_board import prior
from hypothesis import given
from hypothesis import strategies as st

from magnitude.governor.heat_model import HeatModel
from magnitude.governor.operating_point import DUTIES, Ladder, LoadMemory, Mix, Point
from magnitude.governor.thermal_terms import LoadSight

TOLD = prior()
TOP = len(TOLD.levels) - 1
MIXES = st.builds(Mix, st.floats(0.0, 0.6), st.floats(0.0, 0.6), st.booleans())


def ladder_at(temp_c: float) -> tuple[Ladder, LoadMemory]:
    model = HeatModel(TOLD)
    for _ in range(60):
        model.observe(0.0, 0.0, temp_c, 1.0)
    return Ladder(TOLD, model), LoadMemory(TOLD)


def best(temp_c: float, mix: Mix, limit_c: float = 78.0, *, fixed: int | None = None, apart: bool = True) -> Point:
    ladder, memory = ladder_at(temp_c)
    ahead = ladder.ahead(LoadSight(phase="prefill"), memory, temp_c)
    return ladder.best(mix, ahead, limit_c, fixed=fixed, apart=apart)


def test_a_cool_chip_has_its_highest_clock_for_prompts() -> None:
    assert best(20.0, Mix(0.1, 0.1)).prefill == TOP


def test_a_chip_at_its_limit_has_the_least_that_there_is() -> None:
    point = best(90.0, Mix(0.5, 0.5, saturated=True))
    assert (point.prefill, point.decode, point.duty) == (0, 0, DUTIES[-1])


@given(MIXES, st.floats(20.0, 90.0), st.booleans())
def test_a_lower_limit_never_gives_a_faster_point(mix: Mix, temp_c: float, apart: bool) -> None:
    ladder, _ = ladder_at(temp_c)
    low, high = (best(temp_c, mix, limit_c, apart=apart) for limit_c in (70.0, 80.0))
    # What is given away of the speed of answers to save power is the only difference.
    assert ladder.speed(low, mix) <= ladder.speed(high, mix) * 1.04


@given(MIXES, st.floats(20.0, 90.0), st.integers(0, TOP))
def test_clocks_that_cannot_be_set_are_never_chosen(mix: Mix, temp_c: float, fixed: int) -> None:
    point = best(temp_c, mix, fixed=fixed)
    assert (point.prefill, point.decode) == (fixed, fixed)
    assert 0 < point.duty <= 1


@given(MIXES, st.floats(20.0, 90.0))
def test_phases_that_change_too_fast_share_one_clock(mix: Mix, temp_c: float) -> None:
    point = best(temp_c, mix, apart=False)
    assert point.prefill == point.decode


@pytest.mark.parametrize("level", [0, 4, TOP])
def test_the_load_is_remembered_as_work_so_that_slow_clocks_do_not_make_it_larger(level: int) -> None:
    memory = LoadMemory(TOLD)
    rate = TOLD.levels[level].prefill_rate
    for _ in range(600):  # the same prompts take longer at lower clocks
        memory.add(LoadSight(phase="prefill", prefill_share=0.3 / rate), Point(level, level), 1.0)
    assert memory.mix(LoadSight()).prefill == pytest.approx(0.3, rel=0.01)


def test_a_queue_means_that_time_saved_is_spent_at_once() -> None:
    memory = LoadMemory(TOLD)
    memory.add(LoadSight(phase="decode", decode_share=0.2), Point(TOP, TOP), 1.0)
    assert not memory.mix(LoadSight()).saturated
    assert memory.mix(LoadSight(waiting=1)).saturated


def test_a_long_stretch_of_a_phase_is_remembered_and_an_unknown_one_is_not_taken_for_short() -> None:
    memory = LoadMemory(TOLD)
    assert memory.length_s("prefill") is None
    for phase, seconds in (("idle", 5), ("prefill", 20), ("decode", 5), ("prefill", 2), ("decode", 5)):
        for _ in range(seconds):
            memory.add(LoadSight(phase=phase), Point(TOP, TOP), 1.0)
    length_s = memory.length_s("prefill")
    assert length_s is not None
    assert length_s > 10
