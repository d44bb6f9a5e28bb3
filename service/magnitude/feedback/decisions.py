"""Decisions as they are kept: what was decided when, by whom, and the figures that spoke for it."""

from __future__ import annotations

from typing import Literal

import msgspec

from magnitude.board.boot import Stamp
from magnitude.policy.situation import Part
from magnitude.policy.strategy import Strategy
from magnitude.policy.terms import Decided

DecisionSource = Literal["strategy", "thermal", "power", "watch", "memory"]
"""`watch`: the watch over the board itself, where a clock limit was refused or something of its own failed."""

# One decision of the board's that flaps is written once in this time, with the number of those left out.
REPEATED_S = 60.0
# Different decisions that are remembered for that: all that governors say differ by their figures, and fewer than
# this are made in a minute.
_REMEMBERED = 256


class DecisionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One decision. `what` says in words what was done, `reason` why.

    A strategy's: choices `from_id` and `to_id` of `part` in the situation `key`, of `model`; `delay_s` from the first
    sample that showed it, `gain` the expected saving of time (0.1: a tenth); `strategy` was in force at that moment.
    `repeats` equal ones before it were left out.
    """

    stamp: Stamp
    source: DecisionSource
    kind: str
    reason: str
    model: str = ""
    part: Part | Literal[""] = ""
    key: str = ""
    from_id: str = ""
    to_id: str = ""
    what: str = ""
    delay_s: float = 0.0
    gain: float = 0.0
    repeats: int = 0
    strategy: Strategy | None = None


def row_of(decided: Decided, model: str, stamp: Stamp, strategy: Strategy | None = None) -> DecisionRow:
    """The row of a decision about how `model` is run, while `strategy` was in force."""
    return DecisionRow(
        stamp=stamp,
        source="strategy",
        kind=decided.kind,
        reason=decided.reason,
        model=model,
        part=decided.part,
        key=decided.key,
        from_id=decided.from_id,
        to_id=decided.to_id,
        what=_in_words(decided),
        delay_s=decided.delay_s,
        gain=decided.gain,
        strategy=strategy,
    )


class Repeats:
    """Lets decisions through, but not what flaps: the same thing decided again within a minute is only counted.
    Decisions of the strategy loop always pass, for each is a line of its timeline. Pure."""

    def __init__(self) -> None:
        self._passed: dict[tuple[str, str, str], tuple[float, int]] = {}

    def pass_on(self, row: DecisionRow) -> DecisionRow | None:
        """The row as it is to be kept; None: it is only counted."""
        if row.source == "strategy":
            return row
        same = (row.source, row.kind, row.what)
        passed_s, left_out = self._passed.pop(same, (None, 0))
        if passed_s is not None and 0 <= row.stamp.at_s - passed_s < REPEATED_S:
            self._passed[same] = (passed_s, left_out + 1)
            return None
        if len(self._passed) >= _REMEMBERED:
            del self._passed[next(iter(self._passed))]
        self._passed[same] = (row.stamp.at_s, 0)
        return msgspec.structs.replace(row, repeats=left_out) if left_out else row


def _in_words(decided: Decided) -> str:
    where = f"{decided.part} ({decided.key})" if decided.part and decided.key else decided.part or decided.key
    change = f"{decided.from_id} to {decided.to_id}" if decided.from_id and decided.to_id else decided.to_id
    change = change or decided.from_id
    return ": ".join(text for text in (where, change) if text)
