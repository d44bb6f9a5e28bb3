from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

from magnitude.engine.protocol import Pace
from magnitude.schedule.pacing import FULL, LEAST_CHANGE, LEAST_SHARE, Pacing, Shares

SHARES = st.floats(0.001, 1.0)


class Engine(ScriptedEngine):
    """One that listens."""

    def __init__(self) -> None:
        super().__init__(lambda message: None)

    @property
    def paces(self) -> list[Shares]:
        paces = [message for message in self.sent if isinstance(message, Pace)]
        return [Shares(prefill=pace.prefill, decode=pace.decode) for pace in paces]


def with_engine() -> tuple[Pacing, Engine]:
    pacing, engine = Pacing(lambda: 7), Engine()
    pacing.engine_up(engine)
    return pacing, engine


def test_an_engine_is_told_nothing_while_nobody_wants_anything():
    pacing, engine = with_engine()
    pacing.set("governor", 1.0, 1.0)
    assert engine.paces == []
    assert pacing.shares == FULL


def test_two_sides_leave_the_product():
    pacing, engine = with_engine()
    pacing.set("board", 0.5, 0.8)
    pacing.set("governor", 0.5, 0.5)
    assert engine.paces[-1] == Shares(prefill=0.25, decode=0.4)
    pacing.set("board", 1.0, 1.0)
    assert engine.paces[-1] == Shares(prefill=0.5, decode=0.5)
    assert list(pacing.by_source) == ["governor"]


def test_small_changes_are_not_sent_until_they_add_up():
    pacing, engine = with_engine()
    pacing.set("board", 0.5, 0.5)
    for step in range(1, 4):
        pacing.set("board", 0.5 - step * 0.002, 0.5)
    assert engine.paces == [Shares(prefill=0.5, decode=0.5), Shares(prefill=0.494, decode=0.5)]


def test_all_of_the_time_is_said_however_near_it_was():
    pacing, engine = with_engine()
    pacing.set("board", 0.98, 0.98)
    pacing.set("board", 0.995, 0.995)
    pacing.set("board", 1.0, 1.0)
    assert engine.paces[-1] == FULL


def test_the_next_engine_is_told_what_holds():
    pacing, engine = with_engine()
    pacing.set("governor", 0.5, 0.5)
    pacing.engine_down()
    pacing.set("governor", 0.25, 0.25)
    assert len(engine.paces) == 1
    following = Engine()
    pacing.engine_up(following)
    assert following.paces == [Shares(prefill=0.25, decode=0.25)]


@pytest.mark.parametrize("share", [0.0, -1.0, 1.01, math.nan])
def test_what_is_no_share_is_refused(share: float):
    pacing, _ = with_engine()
    with pytest.raises(ValueError, match="above 0"):
        pacing.set("governor", 1.0, share)
    assert pacing.shares == FULL


@given(st.lists(st.tuples(st.sampled_from("abc"), SHARES, SHARES), max_size=30))
def test_what_the_engine_was_told_is_what_holds(asked: list[tuple[str, float, float]]):
    pacing, engine = with_engine()
    for source, prefill, decode in asked:
        pacing.set(source, prefill, decode)
        told = engine.paces[-1] if engine.paces else FULL
        holds = pacing.shares
        assert min(holds.prefill, holds.decode) >= LEAST_SHARE
        assert told.prefill == pytest.approx(holds.prefill, rel=1.01 * LEAST_CHANGE)
        assert told.decode == pytest.approx(holds.decode, rel=1.01 * LEAST_CHANGE)
