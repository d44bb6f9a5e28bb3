"""The board as strategy loops see it: put together from what was last seen by those who watch over it."""

from __future__ import annotations

from collections.abc import Callable

from magnitude.board.cpu import EngineCpus
from magnitude.board.snapshot import Snapshot
from magnitude.governor.in_force import InForce
from magnitude.governor.memory_ladder import Step
from magnitude.policy.situation import heat_of
from magnitude.policy.terms import BoardSeen
from magnitude.schedule.strategy_sight import clock_share

# A clock that drifts by less says nothing; what is told of it would only wake the loops.
CLOCK_DIGITS = 2


class BoardSight:
    """Called on the event loop; reads nothing itself. `cpus` are those of a board that is not this machine (None: as
    the snapshot has them)."""

    def __init__(
        self,
        *,
        snapshot: Callable[[], Snapshot | None],
        in_force: Callable[[], InForce],
        memory_step: Callable[[], Step],
        cpus: EngineCpus | None = None,
        bandwidth_use: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._snapshot = snapshot
        self._in_force = in_force
        self._memory_step = memory_step
        self._cpus = cpus
        self._bandwidth_use = bandwidth_use

    def __call__(self) -> BoardSeen | None:
        """None before the board was seen."""
        snapshot = self._snapshot()
        if snapshot is None:
            return None
        cpus = self._cpus or snapshot.engine
        if not cpus.cores:
            return None
        now = self._in_force()
        # Clocks of a simulated board are not those of the CPUs that compute.
        clocks = snapshot.clocks if self._cpus is None else ()
        share = clock_share(clocks, cpus.cores, working_khz=now.working_khz, asked_khz=now.asked_khz)
        return BoardSeen(
            cores=cpus.cores,
            usable=cpus.usable,
            big=cpus.big,
            heat=heat_of(now.heat),
            clock_share=round(share, CLOCK_DIGITS),
            memory="ample" if self._memory_step() == "normal" else "short",
            supply=now.tier,
            prefill_threads=now.wanted.prefill_threads,
            decode_threads=now.wanted.decode_threads,
            smaller=now.smaller,
            bandwidth_use=self._bandwidth_use(),
        )
