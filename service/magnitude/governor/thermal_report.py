"""What is shown of the decisions about heat, in `/v1/magnitude/state` and the metrics."""

from __future__ import annotations

import msgspec

from magnitude.board.brief import BoardState
from magnitude.governor.decision import DecisionCount, DecisionTaken
from magnitude.governor.power_state import PowerState
from magnitude.governor.thermal import ThermalState
from magnitude.governor.thermal_prior import HeatLimits
from magnitude.governor.wanted import Wanted


class ThermalReport(msgspec.Struct, frozen=True, kw_only=True):
    """`governor` is None before the board was seen for the first time. `wanted` is what heat asks for; `caps_khz` (by
    policy, None: as found) and `concurrency` hold for heat and supply together. `faults` are failures of our own,
    after each of which the board is held low for a while; `fault` is the one that lasts. `decisions` are those of
    both governors, the newest first, `decisions_total` their number since the start."""

    enabled: bool = True
    governor: ThermalState | None = None
    limits: HeatLimits | None = None
    wanted: Wanted = Wanted()
    caps_khz: dict[str, int | None] = {}
    concurrency: int | None = None
    fault: str = ""
    faults: int = 0
    decisions: list[DecisionTaken] = []
    decisions_total: list[DecisionCount] = []


class BoardView(msgspec.Struct, frozen=True, kw_only=True):
    """The board as it is seen, and what is done about its heat and its supply."""

    board: BoardState = BoardState()
    thermal: ThermalReport = ThermalReport()
    power: PowerState = PowerState()
