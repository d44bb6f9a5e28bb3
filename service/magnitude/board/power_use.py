"""What a board takes: P = C * V^2 * f for each busy core by how busy it is, leakage by temperature, memory by its
traffic, and what is taken also at rest."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from magnitude.board.profile import BoardProfile, Opp, PowerProfile
from magnitude.board.workload import CoreUse, Load

# Leakage is given at this temperature.
LEAKAGE_AT_C = 25.0
# Chips are specified up to this junction temperature at most, and switch off before; without an end the exponential
# would run away from a chip in hot air that nothing cools.
LEAKAGE_UP_TO_C = 125.0


def volts_at(opps: Sequence[Opp], khz: float) -> float:
    """Core voltage at a clock; the firmware also runs clocks between two operating points."""
    if khz <= opps[0].khz:
        return opps[0].volts
    for low, high in itertools.pairwise(opps):
        if khz <= high.khz:
            return low.volts + (high.volts - low.volts) * (khz - low.khz) / (high.khz - low.khz)
    return opps[-1].volts


def cores_w(profile: BoardProfile, used: Sequence[CoreUse], load: Load) -> float:
    """Power of the busy cores at full duty. A core that waits for memory takes `stalled_activity` of what one that
    computes takes."""
    stalled = profile.power.stalled_activity
    activity = stalled + (1.0 - stalled) * load.computing_share
    return activity * sum(
        use.cores * use.cluster.watts_per_ghz_v2 * use.ghz * volts_at(use.cluster.opps, use.ghz * 1e6) ** 2
        for use in used
    )


def leakage_w(power: PowerProfile, temp_c: float) -> float:
    """Leakage at a chip temperature."""
    return power.leakage_w * float(2.0 ** ((min(temp_c, LEAKAGE_UP_TO_C) - LEAKAGE_AT_C) / power.leakage_doubles_c))
