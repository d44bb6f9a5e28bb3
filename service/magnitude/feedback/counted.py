"""What the processor counts for the engine, as rates of the last seconds of work; and the roofline position.

Readings come with the engine's heartbeats. Only stretches in which something ran are looked at: an idle engine's few
instructions say nothing of what its work is like.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from magnitude.board.counters import CounterRates, CounterReading, rates_between

# A stretch of work over which rates are taken: long enough for some prompts and answers, short against heat.
STRETCH_S = 10.0
# … of which at least this share was spent in runs.
LEAST_BUSY = 0.5


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """Where decoding stands between computing and reading. `bandwidth_use` is the share of what memory gives at most
    (None: not known); `source`: counted by the processor, or estimated from the weights that each step reads."""

    bandwidth_use: float | None = None
    source: Literal["counted", "estimated", "not available"] = "not available"


class CountedWork(msgspec.Struct, frozen=True, kw_only=True):
    """`rates` of the last stretch of work (None: there was none, or nothing is counted here)."""

    rates: CounterRates | None = None
    roofline: Roofline = Roofline()


class CounterWatch:
    """Fed with heartbeats; times are monotonic seconds, `busy_s` what all runs have taken together so far."""

    def __init__(self) -> None:
        self.rates: CounterRates | None = None
        self._from: tuple[float, float, CounterReading] | None = None

    def beat(self, counted: CounterReading | None, busy_s: float, now_s: float) -> None:
        if counted is None:
            self._from = None
            return
        if self._from is None:
            self._from = (now_s, busy_s, counted)
            return
        begun_s, busy_before_s, before = self._from
        if now_s - begun_s < STRETCH_S:
            return
        self._from = (now_s, busy_s, counted)
        ran_s = busy_s - busy_before_s
        if ran_s >= LEAST_BUSY * (now_s - begun_s):
            self.rates = rates_between(before, counted, ran_s)

    def engine_gone(self) -> None:
        """The next engine counts from zero."""
        self._from = None


def roofline(
    rates: CounterRates | None, *, read_bytes_s: float | None, weight_bytes: int, step_s: float | None
) -> Roofline:
    """`read_bytes_s` is what memory gives at most (None: not known of this board), `step_s` what a decode step of one
    row takes now (None: not measured). Each step reads all weights once."""
    if not read_bytes_s:
        return Roofline()
    if rates is not None and rates.read_bytes_s is not None:
        return Roofline(bandwidth_use=min(1.0, rates.read_bytes_s / read_bytes_s), source="counted")
    if step_s and weight_bytes:
        return Roofline(bandwidth_use=min(1.0, weight_bytes / step_s / read_bytes_s), source="estimated")
    return Roofline()
