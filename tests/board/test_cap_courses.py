"""Caps over any course of services, kills, admins and drivers."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Literal

from capped_board import OPPS, CappedBoard
from hypothesis import given
from hypothesis import strategies as st

from magnitude.board.cap_files import write_limit
from magnitude.board.cap_rules import ClockRange
from magnitude.board.clock_caps import ClockCaps, restore_leftover

Event = tuple[Literal["cap", "kill", "stop", "refuse", "driver"], int]

# A third of the caps is no clock that exists.
KHZ = st.one_of(st.sampled_from(OPPS), st.sampled_from(OPPS), st.integers(0, 3_000_000))
EVENTS = st.one_of(
    st.tuples(st.just("cap"), KHZ),
    st.tuples(st.sampled_from(["kill", "stop", "refuse", "driver"]), st.just(0)),
)


@given(st.lists(EVENTS, max_size=20), st.sampled_from(OPPS))
def test_whatever_happens_the_limit_is_the_original_again_at_the_end(course: list[Event], original_khz: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        board = CappedBoard(Path(name), limit_khz=original_khz)
        refuses = [False]

        def write(path: Path, khz: int) -> None:
            assert khz in OPPS
            if refuses[0]:
                refuses[0] = False
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            write_limit(path, khz)

        caps = ClockCaps(board.roots, board.run, write=write)
        right = original_khz
        for event, khz in course:
            match event:
                case "cap":
                    cap = caps.set({"policy0": khz}).policies["policy0"]
                    assert cap.in_force_khz == board.limit()
                    assert cap.refusal or board.limit() <= max(khz, OPPS[0])
                case "kill":
                    caps = ClockCaps(board.roots, board.run, write=write)
                case "stop":
                    caps.restore()
                    caps = ClockCaps(board.roots, board.run, write=write)
                case "refuse":
                    refuses[0] = True
                case "driver":
                    board.add("policy0")
                    right = OPPS[-1]
            assert board.limit() <= right
        restore_leftover(board.run, board.roots)
        assert board.limit() in (original_khz, right)


@given(
    st.lists(EVENTS, max_size=10), st.integers(100_000, 2_399_999).filter(lambda khz: khz not in OPPS), st.booleans()
)
def test_a_limit_that_somebody_set_outlives_all_services(course: list[Event], theirs_khz: int, killed: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        board = CappedBoard(Path(name))
        caps = ClockCaps(board.roots, board.run)
        caps.set({"policy0": 1200000})
        board.admin_sets(theirs_khz)
        for _, khz in course:
            caps.set({"policy0": khz})
            assert board.limit() == theirs_khz
        if not killed:
            caps.restore()
        restore_leftover(board.run, board.roots)
        ClockCaps(board.roots, board.run)
        assert board.limit() == theirs_khz


RANGES = st.builds(
    lambda low, high, opps: ClockRange(min_khz=low, max_khz=high, opps_khz=tuple(sorted(opps))),
    st.one_of(st.none(), st.integers(1, 1_000_000)),
    st.one_of(st.none(), st.integers(1_000_000, 4_000_000)),
    st.frozensets(st.integers(1, 5_000_000), max_size=8),
)


@given(RANGES, st.integers(-10, 6_000_000))
def test_a_fitted_cap_is_a_clock_within_the_hardwares_limits(hardware: ClockRange, khz: int) -> None:
    fitted = hardware.fitted(khz)
    assert (hardware.min_khz or fitted) <= fitted <= (hardware.max_khz or fitted)
    usable = [opp for opp in hardware.opps_khz if (hardware.min_khz or 0) <= opp <= (hardware.max_khz or opp)]
    if usable:
        assert fitted in usable
        assert fitted <= max(khz, usable[0])
