from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.governor.thermal_terms import PHASES, LoadSight, Phase
from magnitude.schedule.open_tasks import OpenTask
from magnitude.schedule.phase_meter import LoadLooks, PhaseMeter, PhaseTimes, WorkMeter, load_sight, work_by_phase
from magnitude.schedule.present_work import IDLE, PresentWork

DECODE = PresentWork(phase="decode", decoding=2, model="m", past_tokens=40)


def test_time_counts_for_the_phase_that_was_entered_last() -> None:
    meter = PhaseMeter(10.0)
    assert meter.enter("prefill", 11.0)
    assert not meter.enter("prefill", 12.0)
    assert meter.enter("decode", 14.0)
    assert meter.times(15.0) == PhaseTimes(idle_s=1.0, prefill_s=3.0, decode_s=1.0)
    assert meter.times(16.0).since(meter.times(16.0)) == PhaseTimes()


@given(st.lists(st.tuples(st.sampled_from(PHASES), st.floats(-5, 100)), max_size=20))
def test_no_second_is_counted_twice_or_lost(steps: list[tuple[Phase, float]]) -> None:
    meter, now_s, latest_s = PhaseMeter(0.0), 0.0, 0.0
    for phase, dt_s in steps:
        now_s += dt_s
        latest_s = max(latest_s, now_s)
        meter.enter(phase, now_s)
    assert meter.times(latest_s).total_s == pytest.approx(latest_s)


def test_shares_are_of_all_the_time_since_the_last_look() -> None:
    spent = PhaseTimes(idle_s=5.0, prefill_s=1.0, decode_s=3.0, mixed_s=1.0)
    assert load_sight(DECODE, spent, running=2, waiting=1) == LoadSight(
        phase="decode", prefill_share=0.1, decode_share=0.3, mixed_share=0.1, running=2, waiting=1, rows=2
    )


def test_a_second_look_at_the_same_moment_has_no_shares() -> None:
    assert load_sight(IDLE, PhaseTimes(), running=0, waiting=0) == LoadSight()


def test_work_that_is_over_is_told_by_its_phase() -> None:
    spent = PhaseTimes(idle_s=1.0, prefill_s=2.0, decode_s=3.0)
    parts = {work.phase: (seconds, work) for seconds, work in work_by_phase(DECODE, spent)}
    assert parts["idle"] == (1.0, IDLE)
    assert parts["decode"] == (3.0, DECODE)
    seconds, prefill = parts["prefill"]
    assert (seconds, prefill.decoding, prefill.entering, prefill.model) == (2.0, 0, 1, "m")
    assert "mixed" not in parts


def test_a_change_is_told_once_and_at_once() -> None:
    tasks: list[OpenTask] = []
    meter, told = WorkMeter(lambda: tasks, lambda: 0.0), []
    meter.on_change = lambda: told.append(meter.present().phase)
    meter.look()
    tasks.append(_run())
    meter.look()
    meter.look()
    tasks.clear()
    meter.look()
    assert told == ["prefill", "idle"]


def _run() -> OpenTask:
    made = OpenTask(1, "m", close=lambda task, record: None, withdraw=lambda key: None)
    made.started(0.0)
    return made


def test_each_look_tells_of_the_time_since_the_one_before() -> None:
    now_s = 0.0
    tasks: list[OpenTask] = []
    meter = WorkMeter(lambda: tasks, lambda: now_s)
    looks = LoadLooks(meter, lambda: (1, 2))
    tasks.append(_run())
    meter.look()
    now_s = 2.0
    sight = looks()
    assert (sight.phase, sight.prefill_share, sight.running, sight.waiting) == ("prefill", 1.0, 1, 2)
    now_s = 3.0
    tasks.clear()
    meter.look()
    now_s = 5.0
    assert looks().prefill_share == pytest.approx(1 / 3)
    now_s = 6.0
    assert looks() == LoadSight(running=1, waiting=2)
