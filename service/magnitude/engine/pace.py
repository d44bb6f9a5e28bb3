"""How long the engine has to pause between graph runs, so that it computes for a share of the time only.

A run of `t` seconds in a phase that has the share `s` is made up for by `t * (1/s - 1)` seconds in which nothing
runs: then the phase computes for `s` of the time. Time without work counts as well. Pure: told of runs, shares and
the time.
"""

from __future__ import annotations

import math
from typing import Literal

from magnitude.engine.protocol import StepKind
from magnitude.errors import RequestError

Phase = Literal["prefill", "decode"]

# The longest pause between two runs: it holds up every answer that is being written, and a client should see that
# it goes on. What is still owed then is carried over to the next one.
MAX_PAUSE_S = 2.0
# More than this is never owed: a run that took very long at a very small share (an encoder's, which cannot be cut
# into pieces) must not hold up what comes after it for minutes. The share is not kept then.
MAX_OWED_S = 30.0


def phase_of(kind: StepKind) -> Phase:
    """Which share a run goes by: one token a row is decoding, everything else works through a lot at once."""
    return "decode" if kind in ("decode", "verify") else "prefill"


class Pacer:
    """Keeps account of runs that are not made up for yet, by phase and in seconds of running: a changed share then
    counts for what is still owed as well."""

    def __init__(self) -> None:
        self._idle_per_run: dict[Phase, float] = {"prefill": 0.0, "decode": 0.0}
        self._owed_run_s: dict[Phase, float] = {"prefill": 0.0, "decode": 0.0}
        self._paid_until_s = 0.0
        self._since_run_s = 0.0

    @property
    def neutral(self) -> bool:
        """Every phase may compute all the time."""
        return not any(self._idle_per_run.values())

    def set_shares(self, *, prefill: float, decode: float, now_s: float) -> None:
        """From now on these shares of the time, each above 0 and at most 1. Raises `RequestError` for others."""
        for name, share in (("prefill", prefill), ("decode", decode)):
            if not (math.isfinite(1 / share if share else math.nan) and 0 < share <= 1):
                raise RequestError(
                    f"{share} is no share of the time",
                    code="pace_invalid",
                    param=name,
                    hint="A share is above 0 and at most 1",
                )
        self._pay(now_s)
        self._idle_per_run = {"prefill": 1 / prefill - 1, "decode": 1 / decode - 1}
        for phase, idle in self._idle_per_run.items():
            if not idle:
                self._owed_run_s[phase] = 0.0

    def share(self, phase: Phase) -> float:
        return 1 / (1 + self._idle_per_run[phase])

    def ran(self, phase: Phase, run_s: float, now_s: float) -> None:
        """A run that took `run_s` is over now. The time it took pays for nothing."""
        self._pay(now_s - run_s)
        self._paid_until_s = self._since_run_s = now_s
        if not self._idle_per_run[phase]:
            return
        self._owed_run_s[phase] += run_s
        if (owed_s := self._owed_s()) > MAX_OWED_S:
            self._scale(MAX_OWED_S / owed_s)

    def pause_s(self, now_s: float) -> float:
        """How long no run may begin from now on; 0: one may."""
        if self.neutral:
            return 0.0
        self._pay(now_s)
        return max(0.0, min(self._owed_s(), self._since_run_s + MAX_PAUSE_S - now_s))

    def longest_run_s(self, phase: Phase) -> float | None:
        """What can be made up for in one pause: work that comes in pieces is cut accordingly, so that its share is
        kept. None: any run."""
        idle = self._idle_per_run[phase]
        return MAX_PAUSE_S / idle if idle else None

    def _owed_s(self) -> float:
        """Seconds without a run that make up for what is owed."""
        return sum(self._owed_run_s[phase] * idle for phase, idle in self._idle_per_run.items())

    def _pay(self, now_s: float) -> None:
        """Nothing has run since the last payment."""
        paid_s, self._paid_until_s = now_s - self._paid_until_s, max(now_s, self._paid_until_s)
        if paid_s > 0 and (owed_s := self._owed_s()) > 0:
            self._scale(max(0.0, 1 - paid_s / owed_s))

    def _scale(self, factor: float) -> None:
        for phase in self._owed_run_s:
            self._owed_run_s[phase] *= factor
