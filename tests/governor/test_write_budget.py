from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.governor.write_budget import MOST_WRITES, WINDOW_S, Urgency, WriteBudget

URGENCIES: tuple[Urgency, ...] = ("heat", "speed", "tuning", "rest")


@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.sampled_from(URGENCIES)), max_size=80))
def test_no_minute_sees_more_writes_than_allowed_whatever_they_are_for(wishes: list[tuple[float, Urgency]]) -> None:
    budget, now_s, written_s = WriteBudget(), 0.0, list[float]()
    for wait_s, urgency in wishes:
        now_s += wait_s
        if budget.allows(urgency, now_s):
            budget.spend(now_s)
            written_s.append(now_s)
    pairs = zip(written_s, written_s[MOST_WRITES:], strict=False)
    assert all(later - earlier >= WINDOW_S for earlier, later in pairs)


@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.sampled_from(URGENCIES[1:])), max_size=80))
def test_whatever_else_was_written_there_is_a_write_left_for_heat(wishes: list[tuple[float, Urgency]]) -> None:
    budget, now_s = WriteBudget(), 0.0
    for wait_s, urgency in wishes:
        now_s += wait_s
        if budget.allows(urgency, now_s):
            budget.spend(now_s)
        assert budget.allows("heat", now_s)


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=60))
def test_after_a_rest_there_is_always_a_write_for_the_request_that_ends_it(waits_s: list[float]) -> None:
    budget, now_s = WriteBudget(), 0.0
    for wait_s in waits_s:
        now_s += wait_s
        if budget.allows("rest", now_s):
            budget.spend(now_s)
            assert budget.allows("speed", now_s)
            budget.spend(now_s)


def test_the_budget_is_whole_again_after_a_quiet_minute() -> None:
    budget = WriteBudget()
    for _ in range(MOST_WRITES):
        budget.spend(0.0)
    assert not budget.allows("heat", WINDOW_S - 0.1)
    assert budget.allows("rest", WINDOW_S)
