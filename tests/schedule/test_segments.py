"""Compute and wait segments, and the number of conversations that follows from them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.schedule.segments import (
    FIRST_PATIENCE_S,
    LONGEST_WAIT_S,
    OTHER,
    REMEMBERED_CONVERSATIONS,
    REMEMBERED_KINDS,
    SHORTEST_PATIENCE_S,
    Segments,
)


def turns(segments: Segments, name: str, *, compute_s: float, wait_s: float, count: int, **options: Any) -> float:
    """`count` turns of a conversation from time 0 on; returns the time of the last answer."""
    now_s = options.get("now_s", 0.0)
    for _ in range(count):
        segments.arrived("a", name, options.get("task", "chat"), now_s)
        now_s += compute_s
        segments.computed(options.get("task", "chat"), compute_s)
        segments.left("a", name, now_s, answered=True)
        now_s += wait_s
    return now_s - wait_s


@given(compute_s=st.floats(0.01, 100), ratio=st.floats(0, 100), slots=st.integers(1, 16))
def test_capacity_is_the_slots_times_one_plus_wait_by_compute(compute_s: float, ratio: float, slots: int) -> None:
    segments = Segments(utilisation=0.7)
    wait_s = min(compute_s * ratio, LONGEST_WAIT_S)
    now_s = turns(segments, "x", compute_s=compute_s, wait_s=wait_s, count=3)
    capacity = segments.capacity(slots, now_s)
    assert capacity.conversations == pytest.approx(slots * (1 + wait_s / compute_s))
    assert capacity.limit == pytest.approx(0.7 * capacity.conversations)
    assert (capacity.compute_slots, capacity.alive) == (slots, 1)


def test_before_anything_is_measured_there_are_as_many_conversations_as_slots() -> None:
    assert Segments().capacity(4, 0.0).conversations == 4


def test_kinds_of_task_are_measured_apart_and_weigh_by_the_conversations_that_are_alive() -> None:
    segments = Segments()
    turns(segments, "x", compute_s=1.0, wait_s=9.0, count=3, task="tool")
    now_s = turns(segments, "y", compute_s=1.0, wait_s=1.0, count=12, task="chat")
    assert {f.task: (f.compute_s, f.wait_s) for f in segments.figures()} == {"tool": (1.0, 9.0), "chat": (1.0, 1.0)}
    # A tenth and a half of a slot each: 0.3 on average.
    assert segments.capacity(3, now_s).conversations == pytest.approx(10)


def test_recent_samples_weigh_more() -> None:
    segments = Segments()
    for compute_s in [1.0] * 200 + [2.0] * 100:
        segments.computed("chat", compute_s)
    assert segments.figures()[0].compute_s > 1.9


def test_time_in_the_queue_is_neither_computing_nor_waiting() -> None:
    segments = Segments()
    segments.arrived("a", "x", "chat", 0.0)
    segments.left("a", "x", 1.0, answered=True)
    segments.arrived("a", "x", "chat", 5.0)
    segments.computed("chat", 1.0)
    segments.left("a", "x", 20.0, answered=True)
    assert (segments.figures()[0].wait_s, segments.figures()[0].compute_s) == (4.0, 1.0)


def test_a_conversation_with_an_open_request_is_not_waiting() -> None:
    segments = Segments()
    segments.arrived("a", "x", "chat", 0.0)
    segments.arrived("a", "x", "chat", 0.0)
    segments.left("a", "x", 1.0, answered=True)
    segments.arrived("a", "x", "chat", 3.0)
    assert segments.figures() == ()


def test_the_time_before_a_retry_is_no_wait_segment() -> None:
    segments = Segments()
    turns(segments, "x", compute_s=1.0, wait_s=2.0, count=2)
    segments.arrived("a", "x", "chat", 6.0)
    segments.left("a", "x", 6.0, answered=False)
    segments.arrived("a", "x", "chat", 30.0)
    assert segments.figures()[0].wait_samples == 2


def test_a_conversation_that_never_got_an_answer_is_forgotten() -> None:
    segments = Segments()
    segments.arrived("a", "x", "chat", 0.0)
    segments.left("a", "x", 0.0, answered=False)
    assert not segments.knows("a", "x")


def test_conversations_of_one_name_belong_to_their_clients() -> None:
    segments = Segments()
    segments.arrived("a", "x", "chat", 0.0)
    assert segments.knows("a", "x")
    assert not segments.knows("b", "x")


def test_requests_without_a_name_are_no_conversation() -> None:
    segments = Segments()
    segments.arrived("a", "", "chat", 0.0)
    segments.left("a", "", 1.0, answered=True)
    assert (segments.knows("a", ""), segments.alive(1.0)) == (False, 0)


def test_a_conversation_is_alive_for_a_few_of_its_waits() -> None:
    segments = Segments()
    end_s = turns(segments, "x", compute_s=1.0, wait_s=20.0, count=3)
    assert [segments.alive(end_s + after_s) for after_s in (79.0, 81.0)] == [1, 0]


def test_patience_has_bounds() -> None:
    segments = Segments()
    end_s = turns(segments, "x", compute_s=1.0, wait_s=0.0, count=1)
    assert [segments.alive(end_s + FIRST_PATIENCE_S + by_s) for by_s in (-1.0, 1.0)] == [1, 0]
    end_s = turns(segments, "y", compute_s=1.0, wait_s=0.1, count=3, now_s=end_s + 100)
    assert [segments.alive(end_s + SHORTEST_PATIENCE_S + by_s) for by_s in (-1.0, 1.0)] == [1, 0]


def test_a_very_long_silence_is_no_sample() -> None:
    segments = Segments()
    turns(segments, "x", compute_s=1.0, wait_s=LONGEST_WAIT_S + 1, count=3)
    assert segments.figures()[0].wait_samples == 0
    assert segments.expected_wait_s("chat") is None


def test_the_number_of_conversations_and_kinds_that_are_remembered_is_bounded() -> None:
    segments = Segments()
    for number in range(2 * REMEMBERED_CONVERSATIONS):
        turns(segments, f"{number}", compute_s=1.0, wait_s=1.0, count=1, task=f"{number}", now_s=number)
    assert not segments.knows("a", "0")
    assert segments.knows("a", f"{2 * REMEMBERED_CONVERSATIONS - 1}")
    assert sum(segments.knows("a", f"{n}") for n in range(2 * REMEMBERED_CONVERSATIONS)) == REMEMBERED_CONVERSATIONS
    kinds = [figures.task for figures in segments.figures()]
    assert len(kinds) == REMEMBERED_KINDS + 1 and kinds[-1] == OTHER


def test_an_open_conversation_is_not_forgotten() -> None:
    segments = Segments()
    segments.arrived("a", "open", "chat", 0.0)
    for number in range(2 * REMEMBERED_CONVERSATIONS):
        turns(segments, f"{number}", compute_s=1.0, wait_s=1.0, count=1)
    assert segments.knows("a", "open")
