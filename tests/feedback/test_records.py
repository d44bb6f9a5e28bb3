import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.feedback.circumstances import ChosenBy, Circumstances, CircumstanceView, PlanFacts
from magnitude.feedback.records import (
    FAILURES,
    MAX_STRATEGIES,
    OUTCOMES,
    RESTORED_TASKS,
    Feedback,
    TaskRecord,
    TaskRow,
    outcome_of,
    situation_of,
)
from magnitude.feedback.running import RunningFigures
from magnitude.governor.memory_sight import MemorySight
from magnitude.policy.ageing import BUCKET_GROWTH
from magnitude.policy.situation import Heat
from magnitude.policy.terms import BoardSeen
from tests.feedback.record_samples import HOT, PLAN, STRATEGY, MovingClocks, row


def test_a_board_that_has_changed_forgets_how_it_was_however_many_tasks_that_were() -> None:
    figures = RunningFigures()
    for number in range(1000):
        figures.add(1.0, number * 0.1)
    for number in range(60):
        figures.add(3.0, 100 + 3000 + number * 10)  # ten half-lives later
    assert figures.mean > 2.8
    assert figures.quantile(0.5) == pytest.approx(3.0, rel=BUCKET_GROWTH - 1)


def test_hot_and_cold_are_kept_apart_where_heat_is_known() -> None:
    heats: list[Heat | None] = ["cool", "hot", None, None]
    feedback = Feedback(heat=lambda: heats.pop(0), clocks=MovingClocks())
    for run_s in (1.0, 3.0, 9.0):
        feedback.record(TaskRecord(kind="embed", model="m", outcome="ok", prefill_s=run_s))
    feedback.record(TaskRecord(kind="embed", model="m", outcome="failed"))
    found = feedback.figures_by_heat()
    assert {name: (one.count, one.failed) for name, one in found.items()} == {
        "embed m cool": (1, 0),
        "embed m hot": (1, 0),
    }
    assert found["embed m hot"].run_p50_s == pytest.approx(3.0, rel=0.1)
    whole = feedback.figures()["embed m"]
    assert (whole.count, whole.failed) == (4, 1)
    assert (whole.run_p50_s, whole.run_p99_s) == pytest.approx((3.0, 9.0), rel=0.1)


def test_failures_are_counted_and_do_not_bend_the_latency_picture() -> None:
    feedback = Feedback(clocks=MovingClocks())
    good = TaskRecord(
        kind="generate", model="m", outcome="ok", prompt_tokens=100, new_tokens=11, prefill_s=1.0, decode_s=1.0
    )
    feedback.record(good)
    feedback.record(TaskRecord(kind="generate", model="m", outcome="failed", code="request_quarantined"))
    feedback.record(TaskRecord(kind="generate", model="m", outcome="cancelled"))
    figures = feedback.figures()["generate m"]
    assert (figures.count, figures.failed, figures.cancelled) == (3, 1, 1)
    assert figures.prefill_tokens_per_s == pytest.approx(100)
    assert figures.decode_tokens_per_s == pytest.approx(10)


def test_what_was_cached_makes_no_prefill_look_faster() -> None:
    feedback = Feedback(clocks=MovingClocks())
    for cached_tokens, prefill_s in ((0, 1.0), (90, 0.1), (100, 0.0)):
        feedback.record(
            TaskRecord(
                kind="generate",
                model="m",
                outcome="ok",
                prompt_tokens=100,
                cached_tokens=cached_tokens,
                prefill_s=prefill_s,
            )
        )
    figures = feedback.figures()["generate m"]
    assert figures.prefill_tokens_per_s == pytest.approx(100)
    assert figures.cached_share == pytest.approx(190 / 300)


def test_batches_and_drafts_are_means_over_the_tasks_that_had_any() -> None:
    feedback = Feedback(clocks=MovingClocks())
    feedback.record(
        TaskRecord(kind="generate", model="m", outcome="ok", batch=3.0, drafted_tokens=10, accepted_tokens=6)
    )
    feedback.record(TaskRecord(kind="generate", model="m", outcome="ok", batch=1.0))
    feedback.record(TaskRecord(kind="generate", model="m", outcome="ok"))
    figures = feedback.figures()["generate m"]
    assert figures.batch == pytest.approx(2.0)
    assert figures.accepted_share == pytest.approx(0.6)


@given(st.lists(st.floats(0.002, 3000), min_size=1, max_size=100))
def test_higher_quantiles_are_never_smaller(waits: list[float]) -> None:
    feedback = Feedback(clocks=MovingClocks())
    for wait_s in waits:
        feedback.record(TaskRecord(kind="embed", model="m", outcome="ok", queue_s=wait_s, prefill_s=wait_s))
    figures = feedback.figures()["embed m"]
    assert figures.queue_p50_s <= figures.queue_p95_s <= figures.queue_p99_s
    assert figures.run_p50_s <= figures.run_p95_s <= figures.run_p99_s


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("deadline_exceeded", "timed_out"),
        ("engine_gone", "killed"),
        ("out_of_memory", "out_of_memory"),
        ("memory_budget_exceeded", "out_of_memory"),
        ("memory_pressure", "out_of_memory"),
        ("queue_full", "refused"),
        ("request_quarantined", "refused"),
        ("engine_not_ready", "refused"),
        ("model_run_failed", "failed"),
    ],
)
def test_failures_are_told_apart_by_their_code(code: str, outcome: str) -> None:
    kept: list[TaskRow] = []
    feedback = Feedback(keep=kept.append)
    feedback.record(TaskRecord(kind="generate", model="m", outcome="failed", code=code))
    assert [entry.task.outcome for entry in kept] == [outcome]
    assert feedback.figures()["generate m"].failed == 1


def test_what_ended_well_keeps_its_outcome_whatever_the_code() -> None:
    task = TaskRecord(kind="generate", model="m", outcome="cancelled", code="queue_full")
    assert outcome_of(task) == "cancelled"
    assert set(OUTCOMES) - set(FAILURES) == {"ok", "cancelled"}


def test_each_row_says_when_it_was_and_what_it_met() -> None:
    kept: list[TaskRow] = []
    clocks = MovingClocks()
    met = Circumstances(queue_depth=4, plan=PLAN)
    feedback = Feedback(circumstances=lambda model, ran_s: met, keep=kept.append, clocks=clocks)
    clocks.passes(5.0)
    feedback.record(TaskRecord(kind="embed", model="m", outcome="ok"))
    assert kept[0].stamp == clocks.now()
    assert kept[0].circumstances == met


def test_circumstances_are_put_together_from_what_is_known_at_once() -> None:
    view = CircumstanceView(
        plan=lambda model: PLAN if model == "m" else None,
        load=lambda: (2, 1),
        restarts=lambda: 3,
        engine_rss_bytes=lambda: 99,
        memory=lambda: MemorySight(room_bytes=5, limit_bytes=6),
        memory_step=lambda: "shrink_kv",
        board=lambda: BoardSeen((0, 1, 2), 2, clock_share=0.8),
        chosen=lambda model: ChosenBy(strategy=STRATEGY, situation=HOT, field_test="f", arm="on"),
        throttled=lambda ran_s: ran_s > 5,
    )
    assert view.of("m", 6.0) == Circumstances(
        queue_depth=2,
        running=1,
        engine_restarts=3,
        engine_rss_bytes=99,
        memory_headroom_bytes=5,
        memory_limit_bytes=6,
        memory_step="shrink_kv",
        throttled=True,
        clock_share=0.8,
        cores=2,
        field_test="f",
        arm="on",
        plan=PLAN,
        strategy=STRATEGY,
        chosen=HOT,
    )
    assert view.of("other").plan is None


def test_a_plan_has_the_same_name_in_every_life_of_the_service() -> None:
    assert PLAN.plan_id == "2dab70c050cd"
    assert PlanFacts(model="m", model_hash="", graph_file="", threads=1, max_batch=1).plan_id != PLAN.plan_id


def test_a_task_is_kept_with_the_situation_that_it_was_itself() -> None:
    task = TaskRecord(kind="generate", model="m", outcome="ok", prompt_tokens=100, cached_tokens=40, batch=2.6)
    assert situation_of(task, HOT) == msgspec.structs.replace(HOT, tokens=60, rows=3, prefix="part")
    most = msgspec.structs.replace(task, cached_tokens=99)
    assert situation_of(most, HOT).prefix == "most"
    empty = TaskRecord(kind="infer", model="m", outcome="refused")
    assert situation_of(empty, HOT) == msgspec.structs.replace(HOT, task="infer", tokens=1, rows=1, prefix="none")


def test_a_task_is_kept_with_the_settings_that_it_ran_by_not_those_of_its_end() -> None:
    kept: list[TaskRow] = []
    other = msgspec.structs.replace(STRATEGY, prefill_chunk=32)
    feedback = Feedback(circumstances=lambda model, ran_s: Circumstances(strategy=STRATEGY), keep=kept.append)
    named = feedback.known(other)
    feedback.record(TaskRecord(kind="embed", model="m", outcome="ok", strategy=named))
    feedback.record(TaskRecord(kind="embed", model="m", outcome="ok"))
    assert [row.circumstances.strategy for row in kept] == [other, STRATEGY]
    for chunk in range(1, MAX_STRATEGIES + 1):
        feedback.known(msgspec.structs.replace(STRATEGY, prefill_chunk=1000 + chunk))
    assert len(feedback._strategies) == MAX_STRATEGIES


def plan_of(model: str) -> str:
    return PLAN.plan_id if model == "m" else ""


def test_the_picture_begins_with_earlier_tasks_of_the_same_plan() -> None:
    other_plan = PlanFacts(model="m", model_hash="other", graph_file="", threads=1, max_batch=1)
    rows = [row(100), row(0, plan=other_plan), row(0, model="gone"), row(0, outcome="failed"), row(0, plan=None)]
    feedback = Feedback(clocks=MovingClocks())
    assert feedback.restore(rows, plan_of) == 1
    figures = feedback.figures()["generate m"]
    assert figures.prefill_tokens_per_s == pytest.approx(100 / 1.5)
    assert figures.run_p50_s == pytest.approx(4.0, rel=0.1)
    assert (figures.count, figures.failed) == (0, 0)


def test_new_tasks_soon_outweigh_those_from_before() -> None:
    feedback = Feedback(clocks=MovingClocks())
    old = [row(1500) for _ in range(200)]
    assert feedback.restore(old, plan_of) == RESTORED_TASKS
    for _ in range(30):
        feedback.record(TaskRecord(kind="generate", model="m", outcome="ok", prompt_tokens=100, prefill_s=1.0))
    # A thousand tokens a second before, a hundred now.
    assert feedback.figures()["generate m"].prefill_tokens_per_s < 350


def test_a_series_that_has_begun_is_left_alone() -> None:
    feedback = Feedback(clocks=MovingClocks(), heat=lambda: "cool")
    feedback.record(TaskRecord(kind="generate", model="m", outcome="ok", prompt_tokens=10, prefill_s=1.0))
    assert feedback.restore([row(1500)], plan_of) == 0
    assert feedback.figures()["generate m"].prefill_tokens_per_s == pytest.approx(10)
