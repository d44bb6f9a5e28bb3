"""What heat and supply hold the board to at this moment, for whoever chooses how work is run."""

from __future__ import annotations

import msgspec

from magnitude.governor.power import Tier
from magnitude.governor.thermal_terms import HeatState
from magnitude.governor.wanted import Wanted


class InForce(msgspec.Struct, frozen=True, kw_only=True):
    """`heat` None: nobody governs it. `asked_khz` are the clock limits that are set now, which may be those of rest;
    `working_khz` those that are set while something runs. `smaller`: heat or supply ask for smaller weights."""

    heat: HeatState | None = None
    tier: Tier = "full"
    wanted: Wanted = Wanted()
    smaller: bool = False
    asked_khz: dict[str, int | None] = {}
    working_khz: dict[str, int | None] = {}
