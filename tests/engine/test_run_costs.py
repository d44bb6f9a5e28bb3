from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.engine.run_costs import SMALLEST_PIECE, RunCosts

seconds = st.floats(0.001, 10, allow_nan=False)
runs = st.lists(st.tuples(st.integers(1, 300), seconds), max_size=30)


def after(observed: list[tuple[int, float]]) -> RunCosts:
    costs = RunCosts()
    for tokens, run_s in observed:
        costs.extended(tokens, run_s)
    return costs


@given(observed=runs, limit_s=st.floats(0, 20), largest=st.integers(1, 300))
def test_a_piece_is_never_empty_and_never_larger_than_allowed(
    observed: list[tuple[int, float]], limit_s: float, largest: int
):
    assert 1 <= after(observed).largest_piece(limit_s, largest) <= largest


@given(observed=runs, limit_s=st.floats(0, 20))
def test_a_piece_above_the_smallest_is_expected_to_take_no_longer_than_the_limit(
    observed: list[tuple[int, float]], limit_s: float
):
    costs = after(observed)
    size = costs.largest_piece(limit_s, 128)
    expected_s = costs.piece_s(size)
    assert size == SMALLEST_PIECE or (expected_s is not None and expected_s <= limit_s)


def test_with_nothing_known_a_prompt_enters_in_the_smallest_pieces():
    assert RunCosts().largest_piece(1.0, 128) == SMALLEST_PIECE


@given(token_s=st.floats(0.0005, 0.01), limit_s=st.floats(0.02, 0.5))
def test_the_piece_grows_to_what_fits_the_limit(token_s: float, limit_s: float):
    """A machine on which a token takes `token_s`, and a run 5 ms more."""
    costs = RunCosts()

    def run_s(size: int) -> float:
        return 0.005 + size * token_s

    for _ in range(20):
        size = costs.largest_piece(limit_s, 128)
        costs.extended(size, run_s(size))
    assert run_s(size) <= limit_s or size == SMALLEST_PIECE
    # A power of two more would not have fitted, as far as a doubled piece takes twice the time.
    assert size == 128 or 2 * run_s(size) > limit_s


def test_one_slow_run_does_not_keep_pieces_small_for_ever():
    costs = after([(8, 0.01)] * 10 + [(128, 9.0)])
    for _ in range(5):
        costs.extended(64, 0.08)
    assert costs.largest_piece(0.2, 128) == 128


def test_a_decode_step_of_an_unknown_size_is_taken_for_the_nearest_known():
    costs = RunCosts()
    assert costs.decode_s(3) == 0
    costs.decoded(2, 0.014)
    costs.decoded(8, 0.030)
    assert costs.decode_s(3) == 0.014
    assert costs.decode_s(7) == 0.030
    assert costs.decode_s(0) == 0


@given(first=seconds, second=seconds)
def test_recent_runs_weigh_more_than_old_ones(first: float, second: float):
    costs = RunCosts()
    costs.decoded(1, first)
    for _ in range(30):
        costs.decoded(1, second)
    assert abs(costs.decode_s(1) - second) <= 0.01 * abs(first - second) + 1e-9


def slower(factor: float) -> RunCosts:
    """A session that takes `factor` times as long as another one, of which it knows; one run of each kind was
    measured."""
    other = after([(4, 0.010), (16, 0.020), (128, 0.100)])
    for rows, run_s in ((1, 0.010), (4, 0.020)):
        other.decoded(rows, run_s)
    costs = RunCosts(like=other)
    costs.extended(16, factor * 0.020)
    costs.decoded(4, factor * 0.020)
    return costs


def test_a_session_that_was_never_measured_goes_by_another_one():
    other = after([(4, 0.010), (128, 0.100)])
    other.decoded(2, 0.015)
    costs = RunCosts(like=other)
    assert (costs.decode_s(2), costs.piece_s(128)) == (0.015, 0.100)
    assert costs.largest_piece(0.1, 128) == other.largest_piece(0.1, 128) == 128


@given(factor=st.floats(0.1, 10))
def test_one_run_tells_how_all_of_another_sessions_times_are_to_be_scaled(factor: float):
    costs = slower(factor)
    for size, run_s in ((4, 0.010), (16, 0.020), (128, 0.100)):
        assert costs.piece_s(size) == pytest.approx(factor * run_s)
    for rows, run_s in ((1, 0.010), (4, 0.020)):
        assert costs.decode_s(rows) == pytest.approx(factor * run_s)


def test_what_one_session_takes_from_then_on_is_its_own_matter():
    costs = slower(2.0)
    costs.decoded(1, 0.020)
    costs.extended(128, 0.200)
    assert costs.decode_s(1) == pytest.approx(0.020)
    assert costs.piece_s(128) == pytest.approx(0.200)
