import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.feedback.records import Feedback, TaskRecord
from magnitude.feedback.running import BUCKET_GROWTH, RunningFigures


def test_recent_samples_outweigh_old_ones() -> None:
    figures = RunningFigures()
    for _ in range(1000):
        figures.add(1.0)
    for _ in range(60):
        figures.add(3.0)
    assert figures.mean > 2.8
    assert figures.quantile(0.5) == pytest.approx(3.0, rel=BUCKET_GROWTH - 1)


@given(st.lists(st.floats(0.002, 3000), min_size=1, max_size=200))
def test_a_quantile_lies_between_the_smallest_and_a_bucket_above_the_largest(values: list[float]) -> None:
    figures = RunningFigures()
    for value in values:
        figures.add(value)
    for share in (0.05, 0.5, 0.95, 1.0):
        assert min(values) <= figures.quantile(share) * (1 + 1e-9)
        assert figures.quantile(share) <= max(values) * BUCKET_GROWTH * (1 + 1e-9)


def test_memory_stays_bounded_over_very_many_tasks() -> None:
    figures = RunningFigures()
    for i in range(200_000):
        figures.add(0.001 + (i % 1000) * 0.01)
    assert len(figures._weights) < 240
    # The series rises to 9.99; the memory is about twenty samples long.
    assert figures.quantile(0.5) == pytest.approx(9.9, rel=0.1)


def test_failures_are_counted_and_do_not_bend_the_latency_picture() -> None:
    feedback = Feedback()
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
    feedback = Feedback()
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
    feedback = Feedback()
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
    feedback = Feedback()
    for wait_s in waits:
        feedback.record(TaskRecord(kind="embed", model="m", outcome="ok", queue_s=wait_s, prefill_s=wait_s))
    figures = feedback.figures()["embed m"]
    assert figures.queue_p50_s <= figures.queue_p95_s <= figures.queue_p99_s
    assert figures.run_p50_s <= figures.run_p95_s <= figures.run_p99_s
