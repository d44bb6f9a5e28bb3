"""Draft lengths in simulated time: texts with known acceptance on machines with known costs."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude.engine.draft_control import BY_MODEL, DraftControl, DraftCosts
from magnitude.engine.session_spec import SessionSpec

MOST = 8
# Two x86 cores, milliseconds: a run of so many positions, a step of so many rows.
POSITIONS_MS = {1: 11.3, 2: 13.7, 3: 15.7, 4: 18.3, 5: 19.4, 6: 20.5, 7: 22.6, 8: 24.8, 9: 27.0}
ROWS_MS = {1: 11.3, 2: 14.2, 3: 17.4, 4: 20.6}

Accepts = Callable[[int], int]  # how many of so many drafted tokens stand


def geometric(rate: float, seed: int = 1) -> Accepts:
    """Each drafted token stands with probability `rate`, if the one before it does."""
    draws = random.Random(seed)

    def accepted(drafted: int) -> int:
        count = 0
        while count < drafted and draws.random() < rate:
            count += 1
        return count

    return accepted


class Run:
    """One generation of `tokens` tokens, in which every step is a chance to draft."""

    def __init__(self, accepts: Accepts, *, tokens: int = 400, rows: int = 1, strength: int = 4) -> None:
        costs = DraftCosts()
        self.control = DraftControl(costs)
        self.lengths: list[int] = []
        self.tokens = 0
        self.spent_ms = 0.0
        for count in range(1, 5):
            costs.observe_step(count, ROWS_MS[count])
        while self.tokens < tokens:
            length = self.control.length(strength, MOST, rows)
            self.lengths.append(length)
            if length == 0:
                self.control.plain_step()
                self.tokens += 1
                self.spent_ms += ROWS_MS[rows] / rows
                continue
            accepted = accepts(length)
            costs.observe_verify(length + 1, POSITIONS_MS[length + 1])
            self.control.verified(strength, length, accepted, rows, run_s=POSITIONS_MS[length + 1])
            self.tokens += accepted + 1
            self.spent_ms += POSITIONS_MS[length + 1]
            if rows > 1:  # the step of all takes place as well
                self.control.plain_step()
                self.tokens += 1
                self.spent_ms += ROWS_MS[rows] / rows
        self.plain_ms = self.tokens * ROWS_MS[rows] / rows

    @property
    def speed(self) -> float:
        """Times plain decoding."""
        return self.plain_ms / self.spent_ms


def fixed_speed(rate: float, length: int) -> float:
    """Speed of always drafting `length` tokens at that acceptance, alone."""
    tokens = sum(rate**k for k in range(length + 1))
    return tokens * POSITIONS_MS[1] / POSITIONS_MS[length + 1]


@pytest.mark.parametrize("rate", [0.7, 0.8, 0.9, 0.97])
def test_the_length_settles_near_the_best_fixed_one(rate: float):
    best = max(fixed_speed(rate, length) for length in range(1, MOST + 1))
    runs = [Run(geometric(rate, seed), tokens=600) for seed in range(5)]
    assert sum(run.speed for run in runs) / len(runs) > 0.9 * best


def test_a_text_that_is_drafted_well_is_decoded_more_than_twice_as_fast():
    assert Run(geometric(0.9)).speed > 2


@pytest.mark.parametrize("strength", [BY_MODEL, 2, 4, 16])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_where_no_draft_ever_stands_less_than_three_percent_are_wasted(rows: int, strength: int):
    assert Run(lambda _: 0, tokens=200, rows=rows, strength=strength).speed > 0.97


@given(
    pattern=st.lists(st.integers(0, MOST), min_size=1, max_size=30),
    rows=st.integers(1, 4),
    strength=st.sampled_from([BY_MODEL, 2, 3, 4, 6, 9, 16]),
)
@settings(deadline=None)
def test_no_text_however_deceiving_costs_more_than_the_account_allows(pattern: list[int], rows: int, strength: int):
    at = 0

    def accepts(drafted: int) -> int:
        nonlocal at
        at += 1
        return min(drafted, pattern[at % len(pattern)])

    run = Run(accepts, tokens=300, rows=rows, strength=strength)
    plain_ms = ROWS_MS[rows] / rows
    one_run_ms = POSITIONS_MS[MOST + 1] - plain_ms
    # Estimates of runs that were not measured yet may be off by a tenth of a run.
    assert run.spent_ms - run.plain_ms < 0.5 * plain_ms + 1.1 * one_run_ms + 0.01 * run.plain_ms


def test_what_did_not_pay_is_tried_again_and_taken_up_when_the_text_changes():
    quoting = False

    def accepts(drafted: int) -> int:
        return drafted if quoting else 0

    run = Run(accepts, tokens=300)
    assert 0 < sum(1 for length in run.lengths if length) < 20
    control, lengths = run.control, []
    for _ in range(400):
        length = control.length(4, MOST, 1)
        lengths.append(length)
        if length:
            control.verified(4, length, length, 1, run_s=POSITIONS_MS[length + 1])
        else:
            control.plain_step()
    assert lengths[-50:] == [MOST] * 50


def test_beside_others_a_draft_must_be_faster_than_the_batch():
    alone, beside = Run(geometric(0.7), rows=1), Run(geometric(0.7), rows=4)
    assert alone.speed > 1.3
    assert sum(beside.lengths) < 0.1 * sum(alone.lengths)
    assert Run(geometric(0.97), rows=4, strength=16, tokens=800).speed > 1.1


def test_nothing_is_drafted_before_a_plain_step_was_measured():
    assert DraftControl(DraftCosts()).length(16, MOST, 1) == 0


def test_no_more_is_drafted_than_there_is_room_for():
    costs = DraftCosts()
    costs.observe_step(1, 0.01)
    control = DraftControl(costs)
    assert control.length(16, 0, 1) == 0
    assert control.length(16, 3, 1) == 3


def test_a_slow_draft_model_is_not_asked():
    costs = DraftCosts()
    costs.observe_step(1, 0.010)
    assert DraftControl(costs).length(BY_MODEL, MOST, 1, draft_s=0.0005) > 0
    assert DraftControl(costs).length(BY_MODEL, MOST, 1, draft_s=0.010) == 0


def test_unmeasured_runs_are_taken_from_their_neighbours():
    costs = DraftCosts()
    costs.observe_step(1, 10.0)
    assert costs.verify_s(6) == pytest.approx(20.0)  # by the slope that holds until something is measured
    for _ in range(200):
        costs.observe_verify(5, 30.0)
    assert costs.verify_s(3) == pytest.approx(20.0)
    assert costs.verify_s(9) == pytest.approx(30.0 / 1.8 * 2.6)
    costs.observe_step(4, 25.0)
    assert costs.step_s(2) == pytest.approx(15.0)


def test_a_disturbed_first_verification_does_not_end_drafting():
    costs = DraftCosts()
    control = DraftControl(costs)
    costs.observe_step(1, 10.0)
    for positions in range(2, MOST + 2):
        costs.observe_verify(positions, 1000.0)
    assert control.length(16, MOST, 1) > 0


def test_costs_that_forbid_drafts_are_forgotten_in_time():
    costs = DraftCosts()
    control = DraftControl(costs)
    costs.observe_step(1, 10.0)
    for _ in range(100):
        for positions in range(2, MOST + 2):
            costs.observe_verify(positions, 1000.0)
    assert control.length(16, MOST, 1) == 0
    steps = 0
    while control.length(16, MOST, 1) == 0:
        costs.observe_step(1, 10.0)
        steps += 1
        assert steps < 1000


def test_one_disturbed_run_moves_a_mean_little():
    costs = DraftCosts()
    costs.observe_step(1, 10.0)
    costs.observe_step(1, 500.0)
    assert costs.step_s(1) < 12.0


def test_each_session_has_means_of_its_own_and_a_new_one_begins_with_those_in_use():
    one, other = SessionSpec(threads=1), SessionSpec(threads=2)
    costs = DraftCosts()
    costs.observe_step(1, 0.010)
    costs.run_by(one)
    assert costs.known and costs.step_s(1) == 0.010
    for _ in range(200):
        costs.observe_step(1, 0.020)
    assert costs.step_s(1) == pytest.approx(0.020, rel=0.01)
    costs.run_by(None)
    assert costs.step_s(1) == 0.010
    costs.run_by(one)
    assert costs.step_s(1) == pytest.approx(0.020, rel=0.01)
    costs.run_by(other)
    costs.observe_step(1, 0.001)
    costs.run_by(None)
    costs.forget(one)
    costs.run_by(one)
    assert costs.step_s(1) == 0.010
