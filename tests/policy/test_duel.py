"""Two choices side by side."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.duel import HOPELESS_SAMPLES, LEAST_SAMPLES, Duel
from magnitude.policy.learned import Choice

TWO = Choice(session=SessionSpec(threads=2))
ONE = Choice(session=SessionSpec(threads=1))
FOUR = Choice(session=SessionSpec(threads=4))


def duel(challenger: Choice = FOUR, window: int = 50) -> Duel:
    return Duel(TWO, challenger, window=window, least_gain=0.03)


def fought(one: Duel, ratio: float, noise: float, pairs: int, seed: int = 1) -> Duel:
    chance = random.Random(seed)
    for _ in range(pairs):
        if one.verdict() != "open":
            break
        level = math.exp(chance.gauss(0.0, 0.5))  # whatever else goes on concerns both
        one.add(level * math.exp(chance.gauss(0, noise)), level * ratio * math.exp(chance.gauss(0, noise)))
    return one


def test_a_tenth_less_wins_after_a_full_window() -> None:
    won = fought(duel(), 0.9, 0.05, 100)
    assert won.verdict() == "won" and won.samples == 50
    assert won.gain == pytest.approx(0.1, abs=0.03)


def test_what_is_clearly_slower_is_given_up_early() -> None:
    lost = fought(duel(), 1.5, 0.05, 100)
    assert lost.verdict() == "lost" and lost.samples == LEAST_SAMPLES


def test_what_takes_twice_as_long_is_given_up_after_a_few_pairs() -> None:
    lost = fought(duel(), 2.0, 0.05, 100)
    assert lost.verdict() == "lost" and lost.samples == HOPELESS_SAMPLES


@given(seed=st.integers(0, 10_000))
def test_equal_choices_are_not_taken_for_hopeless(seed: int) -> None:
    same = fought(duel(), 1.0, 0.17, HOPELESS_SAMPLES, seed)
    assert same.verdict() == "open"


def test_a_gain_below_the_least_one_is_no_reason_to_switch() -> None:
    assert fought(duel(), 0.985, 0.01, 200).verdict() == "even"


def test_fewer_threads_win_when_they_are_faster_by_however_little() -> None:
    assert fought(duel(ONE), 0.985, 0.01, 200).verdict() == "won"


def test_a_longer_p95_loses_what_the_mean_has_won() -> None:
    one = duel()
    for turn in range(60):
        one.add(1.0, 3.0 if turn % 10 == 0 else 0.6)
        if one.verdict() != "open":
            break
    assert one.verdict() == "lost"


@pytest.mark.parametrize("pair", [(0.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.inf)])
def test_what_cannot_be_a_time_does_not_count(pair: tuple[float, float]) -> None:
    one = duel()
    one.add(*pair)
    assert one.samples == 0 and one.p95_ratio == 1.0


def test_one_stall_of_the_machine_decides_nothing() -> None:
    one = duel()
    one.add(1.0, 1000.0)
    assert fought(one, 0.7, 0.05, 120).verdict() == "won"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 100_000), st.sampled_from([0.02, 0.1, 0.17]))
def test_equal_choices_hardly_ever_win(seed: int, noise: float) -> None:
    """One in some thousand does: it has to pass four standard errors in one of fifty looks."""
    won = sum(fought(duel(), 1.0, noise, 100, seed=seed + turn).verdict() == "won" for turn in range(20))
    assert won <= 1


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 100_000), st.floats(0.5, 0.8))
def test_a_fifth_less_is_found_under_heavy_noise(seed: int, ratio: float) -> None:
    assert fought(duel(), ratio, 0.1, 100, seed=seed).verdict() == "won"
