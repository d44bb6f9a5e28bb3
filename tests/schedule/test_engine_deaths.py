"""What engines die with is given up after the second one; accidents far apart are forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.schedule.engine_deaths import DEATHS_TOLERATED, FORGIVEN_AFTER_S, EngineDeaths
from magnitude.supervise.loss import EngineLoss, LossCause

CRASH, KILLED = EngineLoss("signal 11", "crash"), EngineLoss("signal 9", "killed")
RECYCLED = EngineLoss("on purpose", "recycled")


@pytest.mark.parametrize("cause", ["crash", "hang", "oom", "left", "killed"])
def test_what_kills_engines_while_it_is_made_is_given_up_whoever_killed_them(cause: LossCause) -> None:
    deaths = EngineDeaths[str]()
    found = [deaths.died(EngineLoss("gone", cause), 0.0, making=["a"]) for _ in range(DEATHS_TOLERATED)]
    assert found[:-1] == [{}] * (DEATHS_TOLERATED - 1)
    assert found[-1] == {"a": "2 engines died with it, the last one: gone"}


def test_only_deaths_in_a_row_count_against_what_is_made() -> None:
    deaths = EngineDeaths[str]()
    for _ in range(5):
        assert deaths.died(CRASH, 0.0, making=["a"]) == {}
        deaths.made("a")


def test_what_is_used_is_blamed_with_what_is_worked_on_and_the_rest_is_not() -> None:
    deaths = EngineDeaths[str]()
    for _ in range(DEATHS_TOLERATED):
        deaths.use(["a", "b"], 0.0)
        deaths.use(["a"], 0.0)
        found = deaths.died(CRASH, 0.0, at_work=["c"])
    assert found.keys() == {"a", "c"}


def test_nothing_is_in_use_any_more_once_an_engine_is_gone() -> None:
    deaths = EngineDeaths[str]()
    deaths.use(["a"], 0.0)
    assert [deaths.died(CRASH, 0.0) for _ in range(3)] == [{}] * 3


@given(st.lists(st.sampled_from([KILLED, RECYCLED]), max_size=6))
def test_engines_that_others_ended_say_nothing_of_what_ran(losses: list[EngineLoss]) -> None:
    deaths = EngineDeaths[str]()
    for loss in losses:
        deaths.use(["a"], 0.0)
        assert deaths.died(loss, 0.0, at_work=["a"]) == {}


@given(st.lists(st.floats(0, FORGIVEN_AFTER_S), min_size=1, max_size=6))
def test_only_time_in_use_forgives_and_only_enough_of_it(used_s: list[float]) -> None:
    deaths, now_s = EngineDeaths[str](), 0.0
    deaths.died(CRASH, now_s, at_work=["a"])
    for one_s in used_s:
        deaths.use(["a"], now_s)
        now_s += one_s
        deaths.use([], now_s)
        now_s += FORGIVEN_AFTER_S
    again = deaths.died(CRASH, now_s, at_work=["a"])
    # Twice the time is surely enough, half of it surely not.
    if sum(used_s) > 2 * FORGIVEN_AFTER_S:
        assert not again
    if sum(used_s) < FORGIVEN_AFTER_S / 2:
        assert again
