"""Whether anything holds the board back at this moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from magnitude.board.snapshot import Firmware
from magnitude.governor.power import Tier
from magnitude.governor.thermal_terms import HeatState


def held_back(
    firmware: Firmware, heat: HeatState, tier: Tier, *, duty: float, caps_khz: Mapping[str, int | None]
) -> bool:
    """True when the firmware throttles, or heat or supply take clock or time (`duty`: the share that is left).

    Limits on a cool board on full supply are those of rest between requests: they hold nothing back.
    """
    now = firmware.now
    if now is not None and (now.under_voltage or now.clock_capped or now.throttled or now.soft_limit):
        return True
    limited = duty < 1.0 or any(cap is not None for cap in caps_khz.values())
    return limited and (heat != "cool" or tier != "full")
