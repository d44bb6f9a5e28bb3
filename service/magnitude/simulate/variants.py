"""The same board, otherwise cooled, heavier or hungrier: what is not known of a board for sure."""

from __future__ import annotations

import msgspec

from magnitude.board.profile import BoardProfile, ThermalStage


def varied(
    profile: BoardProfile, *, resistance: float = 1.0, capacity: float = 1.0, power: float = 1.0
) -> BoardProfile:
    """The profile with all thermal resistances, all heat capacities and all power of the chip times these factors."""
    each = profile.power
    return msgspec.structs.replace(
        profile,
        thermal=tuple(
            ThermalStage(c_per_w=stage.c_per_w * resistance, tau_s=stage.tau_s * resistance * capacity)
            for stage in profile.thermal
        ),
        clusters=tuple(
            msgspec.structs.replace(cluster, watts_per_ghz_v2=cluster.watts_per_ghz_v2 * power)
            for cluster in profile.clusters
        ),
        power=msgspec.structs.replace(each, chip_idle_w=each.chip_idle_w * power, leakage_w=each.leakage_w * power),
    )
