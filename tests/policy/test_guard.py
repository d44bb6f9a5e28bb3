"""Tasks that fail, by the strategy that they ran with."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude.policy.guard import MOST_STRATEGIES, Outcomes, TaskGuard, fails_more


def fed(guard: TaskGuard, name: str, tasks: int, every: int) -> None:
    for task in range(tasks):
        guard.add(name, failed=bool(every) and task % every == 0, now_s=float(task))


def test_one_task_in_twenty_is_noticed_even_where_little_ran_before() -> None:
    guard = TaskGuard(half_life_s=1e6)
    fed(guard, "before", 15, 0)
    fed(guard, "now", 160, 20)
    assert "failed" in guard.worse("now", "before", 160.0)


def test_what_failed_as_often_before_is_not_the_strategys_fault() -> None:
    guard = TaskGuard(half_life_s=1e6)
    fed(guard, "before", 200, 20)
    fed(guard, "now", 200, 20)
    assert not guard.worse("now", "before", 200.0)


def test_two_failures_are_an_accident() -> None:
    guard = TaskGuard(half_life_s=1e6)
    fed(guard, "before", 1000, 0)
    for _ in range(2):
        guard.add("now", failed=True, now_s=0.0)
    assert not guard.worse("now", "before", 0.0)


def test_failures_of_long_ago_are_forgiven() -> None:
    guard = TaskGuard(half_life_s=10.0)
    fed(guard, "now", 100, 5)
    for task in range(200):
        guard.add("now", failed=False, now_s=200.0 + task)
    assert not guard.worse("now", "before", 400.0)


def test_a_strategy_that_never_ran_is_not_worse() -> None:
    assert not TaskGuard(10.0).worse("now", "before", 0.0)


def test_only_so_many_strategies_are_remembered() -> None:
    guard = TaskGuard(10.0)
    for number in range(2 * MOST_STRATEGIES):
        guard.add(str(number), failed=True, now_s=0.0)
    assert guard.outcomes("0", 0.0).tasks == 0
    assert guard.outcomes(str(2 * MOST_STRATEGIES - 1), 0.0).tasks == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100_000), st.floats(0.0, 0.03), st.integers(100, 300))
def test_equal_strategies_are_seldom_told_apart(seed: int, share: float, tasks: int) -> None:
    """What is known of the one before is itself uncertain: about one comparison in a hundred is wrong, and costs no
    more than going on with what there was."""
    chance = random.Random(seed)
    told = 0
    for _ in range(20):
        now, before = (sum(chance.random() < share for _ in range(tasks)) for _ in range(2))
        told += now >= 3 and fails_more(Outcomes(tasks, now), Outcomes(tasks, before))
    assert told <= 4
