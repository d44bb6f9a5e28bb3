"""What is shown of the strategy loops, in `/v1/magnitude/state`, the metrics and `magnitude ps`."""

from __future__ import annotations

import msgspec

from magnitude.policy.strategy import Strategy
from magnitude.policy.terms import DecisionKind


class DecisionMade(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of `ago_s` ago."""

    kind: DecisionKind
    part: str
    key: str
    from_id: str
    to_id: str
    reason: str
    ago_s: float
    gain: float = 0.0
    delay_s: float = 0.0


class LoopCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Since the start of the service. `decisions` by kind and part; `delay_s` from the first sample to the end of a
    comparison, won or not, in sum, by part, over `delays` of them."""

    decisions: dict[str, dict[str, int]] = {}
    trials: dict[str, int] = {}
    probes: dict[str, int] = {}
    delay_s: dict[str, float] = {}
    delays: dict[str, int] = {}
    cpu_s: float = 0.0
    events: int = 0


class SessionShown(msgspec.Struct, frozen=True, kw_only=True):
    """A further session of a model, what it takes, and how far it is: making, preparing, unchecked, checking, ready,
    or only there."""

    session: str
    size_bytes: int
    state: str


class StrategyState(msgspec.Struct, frozen=True, kw_only=True):
    """One model's. `on`: whether a loop chooses; without one the strategy is the configured one. `in_words` and
    `strategy_id` name what is in force since `since_s` seconds, `known` what the loop began with. `fault`: why the
    loop was given up. `experiment` is what is being compared, in words; `situations` are rows of its table; of
    `computed_s` seconds of runs, trying others has cost `tried_s`. `counts` run since the start, their `cpu_s` is
    what the loop itself has cost."""

    on: bool = False
    strategy: Strategy | None = None
    strategy_id: str = ""
    in_words: str = ""
    since_s: float = 0.0
    known: str = ""
    fault: str = ""
    sessions: list[SessionShown] = []
    experiment: str = ""
    situations: int = 0
    tried_s: float = 0.0
    computed_s: float = 0.0
    decisions: list[DecisionMade] = []
    counts: LoopCounts = LoopCounts()


def not_chosen(strategy: Strategy) -> StrategyState:
    """Of a model whose strategy is the configured one."""
    return StrategyState(strategy=strategy, strategy_id=strategy.strategy_id, in_words=strategy.in_words)
