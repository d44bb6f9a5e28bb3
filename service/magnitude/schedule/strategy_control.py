"""What the routes for strategies may ask of the loops: the seam that they are tested at."""

from __future__ import annotations

from typing import Protocol

from magnitude.policy.dump_changes import Change
from magnitude.policy.dump_exchange import Running
from magnitude.policy.dumps import Dumps
from magnitude.policy.learned import Learned
from magnitude.policy.pinned import Means

# A client that has died must not leave the loops off for long; who measures longer holds again.
MOST_HOLD_S = 600.0


class StrategyControl(Protocol):
    """The strategy loops of a running service."""

    @property
    def dumps(self) -> Dumps:
        """The files that the loops learn into. Its methods block: call them in a thread."""
        ...

    def learned(self) -> dict[str, Learned]:
        """By model what is known now, saved or not. Models whose engine has not been up yet are left out: what they
        are bound to is not known before."""
        ...

    def running(self, model: str) -> Running | None:
        """What a model of `learned` does now; None while it has no loop."""
        ...

    def means(self, model: str) -> Means | None:
        """What there is to run a model of `learned` by; None while that is not known."""
        ...

    def hold(self, hold_s: float) -> None:
        """Let every model run as it was loaded, and measure and try nothing, for `hold_s` seconds; then go on where
        the loops were. 0 goes on now. A second call replaces the first."""
        ...

    def held_s(self) -> float:
        """For how much longer; 0 while nobody holds."""
        ...

    async def reread(self, model: str, change: Change) -> None:
        """The model's dump or pin was changed so: load it, and go by it from the next run on."""
        ...
