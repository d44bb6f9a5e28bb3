"""What is shown of the strategy loops, in `/v1/magnitude/state`, the metrics and `magnitude ps`."""

from __future__ import annotations

from typing import Literal

import msgspec

from magnitude.policy.strategy import Strategy
from magnitude.schedule.strategy_loop import DecisionMade, LoopCounts


class SessionShown(msgspec.Struct, frozen=True, kw_only=True):
    """A further session of a model, and what it takes."""

    session: str
    size_bytes: int
    state: Literal["making", "there"]


class ExperimentShown(msgspec.Struct, frozen=True, kw_only=True):
    """What is being compared now: a `probe` while idle, or a `trial` with one of so many runs."""

    kind: Literal["probe", "trial"]
    part: str
    what: str


class StrategyState(msgspec.Struct, frozen=True, kw_only=True):
    """One model's. `on`: whether a loop chooses; without one the strategy is the configured one. `in_words` and
    `strategy_id` name what is in force since `since_s` seconds, `known` what the loop began with. `fault`: why the
    loop was given up. `counts` run since the start, their `cpu_s` is what the loop has cost."""

    on: bool = False
    strategy: Strategy | None = None
    strategy_id: str = ""
    in_words: str = ""
    since_s: float = 0.0
    known: str = ""
    fault: str = ""
    sessions: list[SessionShown] = []
    experiments: list[ExperimentShown] = []
    decisions: list[DecisionMade] = []
    counts: LoopCounts = LoopCounts()
