"""What decides on a simulated board: nothing beside the board itself, or the thermal governor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from magnitude.board.profile import BoardProfile
from magnitude.board.snapshot import Snapshot
from magnitude.governor.thermal import ThermalGovernor
from magnitude.governor.thermal_prior import limits_of, prior_of
from magnitude.governor.thermal_sight import sight_of
from magnitude.governor.thermal_terms import Effect, LoadSight

# What an engine runs with that knows nothing of the board: as many threads as llama.cpp takes on a board of four
# cores, and on an RK3588 the four big ones, which is what its users set.
STOCK_THREADS = 4


class Controller(Protocol):
    """Asked about once a second, and when a phase begins."""

    name: str

    def step(self, snapshot: Snapshot, load: LoadSight, now_s: float) -> Sequence[Effect]:
        """What is to be done now."""


class StockController:
    """Leaves all to the kernel's clock governor and to whatever throttles the board."""

    name = "off"

    def step(self, snapshot: Snapshot, load: LoadSight, now_s: float) -> Sequence[Effect]:
        return ()


class GovernedController:
    """The thermal governor with what the profile says of the board, right or wrong. `threads`: the engine's only
    number of threads; None: as many as the governor asks for in each phase."""

    name = "magnitude"

    def __init__(self, profile: BoardProfile, *, threads: int | None = None) -> None:
        self.governor = ThermalGovernor(prior_of(profile, threads=threads), limits_of(profile))

    def step(self, snapshot: Snapshot, load: LoadSight, now_s: float) -> Sequence[Effect]:
        return self.governor.apply(sight_of(snapshot, load), now_s)
