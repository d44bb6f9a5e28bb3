"""Medians, spreads and ratios paired by round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.spread import Spread, paired_ratio

RATES = st.floats(min_value=0.1, max_value=1e6)


def test_a_spread_holds_median_smallest_and_largest() -> None:
    assert Spread.of([3.0, 1.0, 10.0]) == Spread(median=3.0, low=1.0, high=10.0)


def test_no_rounds_have_no_spread() -> None:
    with pytest.raises(ValueError, match="no values"):
        Spread.of([])


def test_ratios_are_taken_round_by_round_so_that_a_slow_round_for_both_changes_nothing() -> None:
    assert paired_ratio([100.0, 10.0, 100.0], [50.0, 5.0, 50.0]) == Spread(median=2.0, low=2.0, high=2.0)


def test_rounds_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError):
        paired_ratio([1.0, 2.0], [1.0])


@given(st.lists(RATES, min_size=1, max_size=20))
def test_a_contender_against_itself_has_ratio_one(rates: list[float]) -> None:
    assert paired_ratio(rates, rates) == Spread(median=1.0, low=1.0, high=1.0)


@given(st.lists(RATES, min_size=1, max_size=20))
def test_the_median_lies_within_the_spread(rates: list[float]) -> None:
    spread = Spread.of(rates)
    assert spread.low <= spread.median <= spread.high
