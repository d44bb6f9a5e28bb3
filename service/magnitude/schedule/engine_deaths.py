"""What engines die with, and is given up for it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from magnitude.supervise.loss import EngineLoss

# Engines that may die while they make something, or of themselves while it runs, before it is given up: one can be an
# accident.
DEATHS_TOLERATED = 2
# Deaths of engines that something ran in are forgotten once it has been in use for so long since: what it causes
# comes back within minutes, each run being like the others, and accidents months apart say nothing together.
FORGIVEN_AFTER_S = 3600.0

K = TypeVar("K", bound=Hashable)


class EngineDeaths(Generic[K]):
    """Over all engines. `now_s` is monotonic."""

    def __init__(self) -> None:
        self._making: Counter[K] = Counter()  # in a row
        self._running: Counter[K] = Counter()
        self._ran_well_s: dict[K, float] = {}  # in use since the last of them; of those that had any
        self._in_use: frozenset[K] = frozenset()
        self._in_use_since_s = 0.0

    def made(self, what: K) -> None:
        """The engine has lived through making it, or has said that it cannot."""
        self._making.pop(what, None)

    def use(self, what: Collection[K], now_s: float) -> None:
        """From now on this is in use, and nothing else."""
        since_s, self._in_use_since_s = self._in_use_since_s, now_s
        for one in self._in_use & self._ran_well_s.keys():
            self._ran_well_s[one] += now_s - since_s
            if self._ran_well_s[one] >= FORGIVEN_AFTER_S:
                del self._ran_well_s[one], self._running[one]
        self._in_use = frozenset(what)

    def died(
        self, loss: EngineLoss, now_s: float, *, making: Collection[K] = (), at_work: Collection[K] = ()
    ) -> dict[K, str]:
        """An engine was lost that was `making` these, or was `at_work` on them beside what is in use. Returns what is
        to be given up, and why."""
        blamed = {*at_work, *self._in_use}
        self.use((), now_s)
        if loss.cause == "recycled":
            return {}
        # Who kills the engine from outside may do so for what making something takes, not for what it runs.
        self._making.update(making)
        if loss.blames_request:
            self._running.update(blamed)
            self._ran_well_s.update(dict.fromkeys(blamed, 0.0))
        return {
            one: f"{deaths} engines died with it, the last one: {loss.reason}"
            for counts in (self._making, self._running)
            for one, deaths in counts.items()
            if deaths >= DEATHS_TOLERATED
        }
