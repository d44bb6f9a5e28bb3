"""What a choice costs with its failures, and when it fails too often."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.training.cells import SUMS, Floats
from magnitude.training.costs import (
    FAILURE_Z,
    failed_share,
    failing_in_words,
    failure_z,
    log_cost,
    log_spread,
    log_variance,
)


def sums(costs_s: list[float], failed: int = 0, failed_s: float = 0.0) -> Floats:
    """Tasks of one unit each."""
    logs = [math.log(cost_s) for cost_s in costs_s]
    of = [len(logs), failed, sum(logs), sum(log * log for log in logs), len(logs), sum(costs_s), failed_s]
    assert len(of) == len(SUMS)
    return np.array(of, dtype=np.float64)


def counted(ok: int, failed: int) -> Floats:
    return sums([1.0] * ok, failed=failed, failed_s=float(failed))


def test_without_failures_it_is_the_mean_of_logarithms() -> None:
    assert float(log_cost(sums([1.0, math.e**2]), 10.0)) == pytest.approx(1.0)


def test_a_failed_task_costs_its_time_and_its_price() -> None:
    # Nine complete tasks of a second; one that took two seconds for nothing, at a price of ten complete ones.
    cost = math.exp(float(log_cost(sums([1.0] * 9, failed=1, failed_s=2.0), 10.0)))
    assert cost == pytest.approx(1.0 + (2.0 + 10.0) / 9.0)


def test_what_never_completes_has_no_cost() -> None:
    assert math.isnan(float(log_cost(sums([], failed=3, failed_s=3.0), 10.0)))


@given(
    st.lists(st.floats(1e-4, 1e3), min_size=2, max_size=20),
    st.integers(0, 10),
    st.floats(0.0, 100.0),
    st.floats(0.5, 2.0),
)
def test_costs_of_twice_the_time_differ_by_that_factor(
    costs_s: list[float], failed: int, failed_s: float, factor: float
) -> None:
    one = log_cost(sums(costs_s, failed, failed_s), 10.0)
    other = log_cost(sums([factor * cost_s for cost_s in costs_s], failed, factor * failed_s), 10.0)
    assert float(other - one) == pytest.approx(math.log(factor), abs=1e-6)


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=20), st.integers(0, 20))
def test_a_further_failure_never_makes_it_cheaper(costs_s: list[float], failed: int) -> None:
    fewer = log_cost(sums(costs_s, failed, float(failed)), 10.0)
    more = log_cost(sums(costs_s, failed + 1, failed + 1.0), 10.0)
    assert float(more) > float(fewer)


def test_the_spread_is_that_of_the_sample() -> None:
    assert log_spread(sums([1.0, math.e, math.e**2])) == pytest.approx(1.0)
    assert log_spread(sums([3.0])) == 0.0


def test_fewer_tasks_are_known_less_well() -> None:
    few, many = sums([1.0, 2.0] * 3), sums([1.0, 2.0] * 30)
    assert log_variance(few, 10.0) > 5 * log_variance(many, 10.0)
    assert log_variance(sums([1.0]), 10.0) == math.inf


def test_one_more_failure_among_few_tasks_may_be_chance() -> None:
    assert failure_z([(counted(19, 1), counted(20, 0))]) < FAILURE_Z


def test_five_failures_in_a_hundred_against_none_are_not_chance() -> None:
    assert failure_z([(counted(190, 10), counted(200, 0))]) > FAILURE_Z


def test_situations_that_tell_nothing_alone_tell_it_together() -> None:
    one = (counted(28, 2), counted(30, 0))
    assert failure_z([one]) < FAILURE_Z
    assert failure_z([one] * 6) > FAILURE_Z


def test_a_situation_in_which_everything_fails_more_is_not_held_against_a_choice() -> None:
    hard = (counted(80, 20), counted(8, 2))
    easy = (counted(10, 0), counted(100, 0))
    assert failure_z([hard, easy]) < FAILURE_Z


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)), max_size=6)
)
def test_never_do_both_fail_more_often_than_the_other(strata: list[tuple[int, int, int, int]]) -> None:
    pairs = [(counted(a, b), counted(c, d)) for a, b, c, d in strata]
    one, other = failure_z(pairs), failure_z([(right, left) for left, right in pairs])
    assert min(one, other) == 0.0
    assert math.isfinite(max(one, other))


def test_shares_are_told_in_words() -> None:
    assert failed_share(counted(0, 0)) == 0.0
    said = failing_in_words([(counted(19, 1), counted(20, 0))] * 2)
    assert said == "5.0% of 40 tasks failed, 0.0% of 40 by default"
