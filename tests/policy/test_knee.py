"""Where more rows in a batch stop paying."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.policy.knee import WORTHWHILE, knee

ROWS = st.lists(st.integers(1, 64), min_size=1, max_size=8, unique=True).map(sorted)
STEP_S = st.floats(1e-4, 1.0)


def test_the_knee_of_the_embedded_model_is_its_largest_measured_batch() -> None:
    rates = {1: 136, 2: 236, 4: 315, 8: 397}  # tokens per second
    assert knee({rows: rows / rate for rows, rate in rates.items()}) == 8


def test_a_gain_that_is_not_worth_it_is_left() -> None:
    rates = {1: 136, 2: 236, 4: 315, 8: 330, 16: 335}
    assert knee({rows: rows / rate for rows, rate in rates.items()}) == 4


@given(ROWS, STEP_S)
def test_steps_that_take_as_long_for_any_number_of_rows_ask_for_the_largest_batch_up_to_the_last_tenth(
    rows: list[int], step_s: float
) -> None:
    assert knee(dict.fromkeys(rows, step_s)) == min(n for n in rows if n >= WORTHWHILE * rows[-1] * (1 - 1e-9))


@given(st.integers(1, 8), STEP_S, st.floats(1.2, 2.0))
def test_throughput_that_keeps_growing_asks_for_the_largest_batch(doublings: int, step_s: float, gain: float) -> None:
    assert knee({2**i: step_s * (2 / gain) ** i for i in range(doublings)}) == 2 ** (doublings - 1)


@given(ROWS, STEP_S)
def test_throughput_that_does_not_grow_asks_for_the_smallest_batch(rows: list[int], step_s: float) -> None:
    assert knee({n: n * step_s for n in rows}) == rows[0]


@given(st.dictionaries(st.integers(1, 64), STEP_S, min_size=1))
def test_the_knee_was_measured_and_loses_at_most_a_tenth_where_steps_never_get_faster(
    step_s: dict[int, float],
) -> None:
    rows = sorted(step_s)
    rising = dict(zip(rows, sorted(step_s.values()), strict=True))
    chosen = knee(rising)
    assert chosen in rising
    assert chosen / rising[chosen] >= (WORTHWHILE - 1e-9) * max(n / s for n, s in rising.items())


@given(st.dictionaries(st.integers(1, 64), STEP_S), st.integers(-10, 10))
def test_the_unit_of_time_does_not_matter(step_s: dict[int, float], binary_digits: int) -> None:
    assert knee({rows: value * 2.0**binary_digits for rows, value in step_s.items()}) == knee(step_s)


@given(st.lists(st.floats(-0.03, 0.03), min_size=5, max_size=5))
def test_noise_of_three_per_cent_does_not_move_a_clear_knee(noise: list[float]) -> None:
    rates = {1: 100, 2: 190, 4: 350, 8: 360, 16: 362}
    measured = {rows: rows / rate * (1 + by) for (rows, rate), by in zip(rates.items(), noise, strict=True)}
    assert knee(measured) == 4


def test_a_batch_that_seems_faster_than_a_smaller_one_is_averaged_with_it() -> None:
    # Taken at its word, a batch of four gives 114 tokens a second instead of 100.
    assert knee({1: 0.010, 2: 0.045, 4: 0.035}) == 1


@pytest.mark.parametrize("step_s", [{}, {0: 0.01}, {4: 0.0}, {4: -1.0}, {4: math.nan}, {4: math.inf}])
def test_without_a_measurement_one_row_is_the_answer(step_s: dict[int, float]) -> None:
    assert knee(step_s) == 1
