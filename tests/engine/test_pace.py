"""Pauses between runs, in simulated time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.engine.pace import MAX_OWED_S, MAX_PAUSE_S, Pacer, Phase, phase_of
from magnitude.errors import RequestError

SHARES = st.floats(0.001, 1.0)
PHASES: st.SearchStrategy[Phase] = st.sampled_from(["prefill", "decode"])


def pacer_at(prefill: float, decode: float) -> Pacer:
    pacer = Pacer()
    pacer.set_shares(prefill=prefill, decode=decode, now_s=0.0)
    return pacer


def test_a_run_is_made_up_for_until_its_phase_has_its_share():
    pacer = pacer_at(0.5, 0.25)
    pacer.ran("decode", 0.1, 10.1)
    assert pacer.pause_s(10.1) == pytest.approx(0.3)
    assert pacer.pause_s(10.3) == pytest.approx(0.1)
    assert pacer.pause_s(10.5) == 0.0
    pacer.ran("prefill", 0.2, 11.0)
    assert pacer.pause_s(11.0) == pytest.approx(0.2)


def test_without_a_share_there_are_no_pauses_and_nothing_is_owed_later():
    pacer = Pacer()
    pacer.ran("prefill", 5.0, 5.0)
    assert pacer.neutral and pacer.pause_s(5.0) == 0.0
    pacer.set_shares(prefill=0.1, decode=0.1, now_s=5.0)
    assert not pacer.neutral and pacer.pause_s(5.0) == 0.0


def test_a_phase_that_may_always_compute_owes_nothing_beside_one_that_may_not():
    pacer = pacer_at(0.5, 1.0)
    pacer.ran("decode", 0.4, 1.0)
    assert pacer.pause_s(1.0) == 0.0


def test_time_without_work_makes_up_for_runs():
    pacer = pacer_at(0.5, 0.5)
    pacer.ran("prefill", 1.0, 1.0)
    pacer.ran("prefill", 1.0, 9.0)
    assert pacer.pause_s(9.0) == pytest.approx(1.0)


def test_runs_that_follow_each_other_without_a_pause_are_all_made_up_for():
    pacer = pacer_at(0.5, 0.5)
    pacer.ran("decode", 0.2, 1.0)
    pacer.ran("decode", 0.2, 1.2)
    assert pacer.pause_s(1.2) == pytest.approx(0.4)


def test_a_raised_share_shortens_a_pause_under_way():
    pacer = pacer_at(0.1, 0.1)
    pacer.ran("prefill", 0.1, 1.0)
    assert pacer.pause_s(1.45) == pytest.approx(0.45)
    pacer.set_shares(prefill=0.5, decode=0.1, now_s=1.45)
    assert pacer.pause_s(1.45) == pytest.approx(0.05)
    pacer.set_shares(prefill=1.0, decode=1.0, now_s=1.46)
    assert pacer.pause_s(1.46) == 0.0


def test_one_pause_is_bounded_and_the_rest_is_carried_over():
    pacer = pacer_at(0.5, 0.5)
    pacer.ran("prefill", 5.0, 5.0)
    assert pacer.pause_s(5.0) == MAX_PAUSE_S
    after_s = 5.0 + MAX_PAUSE_S
    assert pacer.pause_s(after_s) == 0.0
    pacer.ran("decode", 0.1, after_s + 0.1)
    assert pacer.pause_s(after_s + 0.1) == MAX_PAUSE_S


def test_what_is_owed_is_bounded():
    pacer = pacer_at(1e-6, 1e-6)
    pacer.ran("prefill", 1000.0, 1000.0)
    assert pacer.pause_s(1000.0 + MAX_PAUSE_S) == 0.0
    pacer.ran("prefill", 0.0, 1000.0 + MAX_OWED_S)
    assert pacer.pause_s(1000.0 + MAX_OWED_S) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.0001, math.nan, math.inf, 5e-324])
def test_what_is_no_share_is_refused_and_changes_nothing(share: float):
    pacer = pacer_at(0.5, 0.5)
    with pytest.raises(RequestError, match="no share"):
        pacer.set_shares(prefill=0.5, decode=share, now_s=0.0)
    assert (pacer.share("prefill"), pacer.share("decode")) == (0.5, 0.5)


def test_only_steps_and_verifications_are_decoding():
    assert {phase_of(kind) for kind in ("decode", "verify")} == {"decode"}
    assert {phase_of(kind) for kind in ("prefill", "slide", "encode", "tensors")} == {"prefill"}


@given(prefill=SHARES, decode=SHARES, runs=st.lists(st.tuples(PHASES, st.floats(0, 1)), min_size=1, max_size=50))
def test_each_phase_computes_for_its_share_of_the_time(
    prefill: float, decode: float, runs: list[tuple[Phase, float]]
):
    """Runs as long as one pause makes up for, one after the other as soon as they may begin."""
    pacer, now_s, due_s = pacer_at(prefill, decode), 0.0, 0.0
    for phase, part in runs:
        longest_s = pacer.longest_run_s(phase)
        run_s = part * (1.0 if longest_s is None else min(1.0, longest_s))
        now_s += run_s
        pacer.ran(phase, run_s, now_s)
        due_s += run_s / pacer.share(phase)
        pause_s = pacer.pause_s(now_s)
        assert 0 <= pause_s <= MAX_PAUSE_S
        now_s += pause_s
        assert pacer.pause_s(now_s) == pytest.approx(0.0, abs=1e-9)
    assert now_s == pytest.approx(due_s, rel=1e-6)


@given(
    st.lists(st.tuples(st.sampled_from(["ran", "idle", "pace"]), PHASES, st.floats(0, 100), SHARES), max_size=60),
)
def test_no_pause_is_ever_longer_than_the_bound_or_below_nothing(events: list[tuple[str, Phase, float, float]]):
    pacer, now_s = Pacer(), 1000.0
    for what, phase, span_s, share in events:
        if what == "pace":
            pacer.set_shares(prefill=share, decode=1 - share / 2, now_s=now_s)
        else:
            now_s += span_s
            if what == "ran":
                pacer.ran(phase, span_s, now_s)
        assert 0 <= pacer.pause_s(now_s) <= MAX_PAUSE_S
