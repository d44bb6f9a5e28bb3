from __future__ import annotations

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st
from sights import LADDER, Simulation, at, engine

from magnitude.governor.memory import Announce, MemoryGovernor, Recycle, Restart
from magnitude.governor.memory_ladder import STEPS
from magnitude.governor.memory_sight import MemorySight

percents = st.one_of(st.none(), st.floats(0, 120))
looks = st.builds(
    at,
    percents,
    alarmed=st.booleans(),
    stall_percent=st.one_of(st.none(), st.floats(0, 100)),
    high_events=st.one_of(st.none(), st.integers(0, 100000)),
    busy=st.booleans(),
    own_bytes=st.one_of(st.none(), st.integers(0, 2_000_000_000)),
    room_bytes=st.one_of(st.none(), st.integers(0, 2_000_000_000)),
    engine=st.one_of(
        st.none(),
        st.builds(
            engine,
            st.integers(1, 3),
            own_mb=st.integers(0, 3000),
            planned_mb=st.one_of(st.none(), st.integers(0, 500)),
            runs=st.one_of(st.none(), st.integers(0, 1000)),
        ),
    ),
)
# Some looks come late, some at once, and the clock may be set back.
times = st.floats(-100, 100)
courses = st.lists(st.tuples(looks, times), min_size=1, max_size=120)


def announced(course: list[tuple[MemorySight, float]]) -> list[tuple[float, Announce]]:
    governor, now_s, latest_s = MemoryGovernor(LADDER), 0.0, -math.inf
    found = []
    for sight, passed_s in course:
        now_s += passed_s
        latest_s = max(latest_s, now_s)
        found += [(latest_s, e) for e in governor.apply(sight, now_s) if isinstance(e, Announce)]
    return found


@given(courses)
@settings(max_examples=200, deadline=None)
def test_every_change_is_to_the_next_step(course: list[tuple[MemorySight, float]]) -> None:
    for _, change in announced(course):
        assert abs(STEPS.index(change.step) - STEPS.index(change.before)) == 1


@given(courses)
@settings(max_examples=200, deadline=None)
def test_nothing_is_given_back_sooner_than_the_calm_time_after_a_change(
    course: list[tuple[MemorySight, float]],
) -> None:
    changes = announced(course)
    for (before_s, _), (at_s, change) in itertools.pairwise(changes):
        if STEPS.index(change.step) < STEPS.index(change.before):
            assert at_s - before_s >= LADDER.calm_s


@given(st.lists(st.tuples(st.floats(0, 97.9), st.floats(0.1, 30)), min_size=1, max_size=200))
@settings(max_examples=200, deadline=None)
def test_two_changes_are_never_closer_than_the_cool_down_unless_memory_is_at_its_end(
    course: list[tuple[float, float]],
) -> None:
    changes = announced([(at(percent), passed_s) for percent, passed_s in course])
    for (before_s, _), (at_s, _) in itertools.pairwise(changes):
        assert at_s - before_s >= LADDER.cool_down_s


@given(courses)
@settings(max_examples=300, deadline=None)
def test_the_service_is_never_restarted_before_an_engine_was_replaced_and_had_its_time(
    course: list[tuple[MemorySight, float]],
) -> None:
    governor, now_s, latest_s = MemoryGovernor(LADDER), 0.0, -math.inf
    recycled_s: float | None = None
    for sight, passed_s in course:
        now_s += passed_s
        latest_s = max(latest_s, now_s)
        for effect in governor.apply(sight, now_s):
            if isinstance(effect, Recycle):
                assert recycled_s is None or latest_s - recycled_s >= LADDER.recycle_s
                recycled_s = latest_s
            if isinstance(effect, Restart):
                assert recycled_s is not None
                assert latest_s - recycled_s >= LADDER.recycle_s


@given(courses)
@settings(max_examples=100, deadline=None)
def test_whatever_has_happened_memory_in_plenty_leads_back_to_normal(course: list[tuple[MemorySight, float]]) -> None:
    simulation = Simulation()
    for sight, passed_s in course:
        simulation.see(sight)
        simulation.now_s += passed_s
    latest_s = simulation.now_s + 100 * len(course)
    simulation.now_s = latest_s
    simulation.see(at(30, engine=engine(9)), 100)
    assert simulation.governor.step in ("normal", "restart")


@given(st.floats(0, 97.9))
@settings(max_examples=60, deadline=None)
def test_a_steady_figure_leads_to_one_step_and_stays_there(percent: float) -> None:
    simulation = Simulation()
    simulation.see(at(percent), 60)
    steps = len(simulation.steps)
    expected = sum(percent >= threshold for threshold in LADDER.thresholds(1))
    assert simulation.governor.step == STEPS[expected]
    simulation.see(at(percent), 100)
    assert len(simulation.steps) == steps
