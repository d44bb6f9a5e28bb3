"""What the strategy loops are told of runs, tasks, the load and the clocks."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_chooser import OWN, TWO

from magnitude.board.snapshot import ClockPolicy
from magnitude.engine.protocol import SamplerSettings, StepGroup, StepKind
from magnitude.feedback.records import OUTCOMES, TaskRecord
from magnitude.governor.thermal_terms import HeatState
from magnitude.policy.situation import heat_of
from magnitude.policy.terms import LoadSeen, RunsSeen, TaskSeen
from magnitude.schedule.inference import GenerationTask
from magnitude.schedule.open_generation import OpenGeneration
from magnitude.schedule.strategy_sight import clock_share, load_seen, runs_seen, task_seen

BIG = ClockPolicy(name="policy4", cpus=(4, 5), max_khz=2_400_000)
LITTLE = ClockPolicy(name="policy0", cpus=(0, 1), max_khz=1_800_000)


def group(kind: StepKind, *, model: str = "m", runs: int = 3) -> StepGroup:
    return StepGroup(model=model, kind=kind, rows=2, tokens=8, runs=runs, total_s=0.6, max_s=0.3)


@pytest.mark.parametrize("kind", get_args(StepKind))
def test_runs_count_for_the_part_whose_session_they_show(kind: StepKind) -> None:
    parts = {"decode": "decode", "prefill": "prefill", "encode": "encode", "tensors": "encode"}
    seen = list(runs_seen([group(kind)], {"m": (OWN, 128)}))
    assert [one.part for _, one in seen] == ([parts[kind]] if kind in parts else [])


def test_the_models_own_session_is_named_and_a_further_one_kept() -> None:
    further = StepGroup(model="m", session=TWO, kind="prefill", rows=1, tokens=64, runs=1, total_s=0.2, max_s=0.2)
    seen = list(runs_seen([group("decode"), further], {"m": (OWN, 64)}))
    assert seen == [
        ("m", RunsSeen("decode", OWN, 2, 8, 3, 0.6)),
        ("m", RunsSeen("prefill", TWO, 1, 64, 1, 0.2, chunk=64)),
    ]


def test_runs_of_models_without_a_loop_and_groups_of_none_are_left_out() -> None:
    assert list(runs_seen([group("decode", model="other"), group("decode", runs=0)], {"m": (OWN, 8)})) == []


def record(outcome: str, code: str = "") -> TaskRecord:
    return TaskRecord(
        kind="generate",
        model="m",
        outcome=outcome,  # type: ignore[arg-type]
        code=code,
        prompt_tokens=30,
        cached_tokens=10,
        new_tokens=5,
        prefill_s=1.0,
        decode_s=2.0,
    )


def test_a_tasks_time_is_told_by_the_work_that_was_done() -> None:
    assert task_seen(record("ok"), "abc") == TaskSeen("abc", 3.0, 25, failed=False)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_outcomes_that_a_strategy_can_be_the_reason_for_are_told(outcome: str) -> None:
    seen = task_seen(record(outcome), "abc")
    expected = {"ok": False, "timed_out": True, "killed": True, "out_of_memory": True}
    assert (seen.failed if seen else None) == expected.get(outcome)


def test_a_refusal_is_told_only_when_there_was_no_room() -> None:
    full = task_seen(record("refused", "queue_full"), "abc")
    assert full is not None
    assert full.failed
    assert task_seen(record("refused", "request_quarantined"), "abc") is None


def generation(model: str, *, started: bool, emitted: int = 0) -> OpenGeneration:
    task = GenerationTask(request_key="r", model=model, prompt=[1], max_new_tokens=4, sampler=SamplerSettings())
    found = OpenGeneration(
        1, task, prefill_chunk=8, max_draft=0, close=lambda task, record: None, withdraw=lambda number: None
    )
    if started:
        found.started(0.0)
    found.emitted = [1] * emitted
    return found


def test_open_tasks_are_counted_by_model_and_by_what_they_are_at() -> None:
    async def play() -> dict[str, LoadSeen]:
        tasks = [
            generation("m", started=True, emitted=2),
            generation("m", started=True),
            generation("m", started=False),
            generation("n", started=False),
        ]
        return load_seen(tasks)

    import asyncio

    assert asyncio.run(play()) == {"m": LoadSeen(1, 1, 1), "n": LoadSeen(0, 0, 1)}


def test_silent_sensors_are_not_taken_for_a_cool_board() -> None:
    assert heat_of("blind") != "cool"
    assert {heat_of(state) for state in get_args(HeatState)} == {"cool", "warm", "hot"}
    assert heat_of(None) == "cool"


def test_a_board_that_tells_no_clocks_runs_at_its_full_one() -> None:
    assert clock_share((), (0, 1), working_khz={}, asked_khz={}) == 1.0
    assert clock_share((ClockPolicy(name="p", cpus=(0,)),), (0,), working_khz={}, asked_khz={}) == 1.0


def test_the_clock_of_rest_is_not_taken_for_a_limit_on_work() -> None:
    resting = ClockPolicy(name="policy4", cpus=(4, 5), max_khz=2_400_000, cap_khz=1_200_000)
    share = clock_share((resting, LITTLE), (4, 5), working_khz={"policy4": None}, asked_khz={"policy4": 1_200_000})
    assert share == 1.0


def test_somebody_elses_limit_holds_beside_ours() -> None:
    capped = ClockPolicy(name="policy4", cpus=(4, 5), max_khz=2_400_000, cap_khz=1_200_000)
    assert clock_share((capped,), (4, 5), working_khz={}, asked_khz={}) == 0.5
    assert clock_share((capped,), (4, 5), working_khz={"policy4": 1_800_000}, asked_khz={"policy4": 1_800_000}) == 0.5


@given(limit=st.integers(1, 2_400_000) | st.none(), cap=st.integers(1, 2_400_000) | st.none())
def test_the_share_is_that_of_the_cpus_asked_for_and_never_more_than_all(limit: int | None, cap: int | None) -> None:
    big = ClockPolicy(name="policy4", cpus=(4, 5), max_khz=2_400_000, cap_khz=cap)
    share = clock_share((big, LITTLE), (4, 5, 0, 1), working_khz={"policy4": limit}, asked_khz={})
    lowest = min(limit or 2_400_000, cap or 2_400_000) / 2_400_000
    assert share == pytest.approx((lowest + 1) / 2)
