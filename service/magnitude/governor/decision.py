"""What was decided about the board, and why, as it is shown."""

from __future__ import annotations

from typing import Literal

import msgspec

Source = Literal["thermal", "power", "watch"]
Kind = Literal["caps", "duty", "threads", "concurrency", "smaller", "state", "tier", "refused", "fault"]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """`what` was decided, by whom, and the figures of that moment that spoke for it."""

    source: Source
    kind: Kind
    what: str
    reason: str


class DecisionTaken(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of `ago_s` ago."""

    source: Source
    kind: Kind
    what: str
    reason: str
    ago_s: float


class DecisionCount(msgspec.Struct, frozen=True, kw_only=True):
    source: Source
    kind: Kind
    total: int
