"""Temperatures that the board is held to: its own with those of the configuration in their place."""

from __future__ import annotations

import msgspec

from magnitude.board.profile import BoardProfile
from magnitude.board.snapshot import Snapshot
from magnitude.errors import ConfigError
from magnitude.governor.thermal_prior import HeatLimits, limits_of


def limits_with(
    profile: BoardProfile, *, target_c: float | None, down_c: float | None, up_c: float | None
) -> HeatLimits:
    """None leaves the profile's. Raises `ConfigError` where they do not follow upon each other, or lie above what the
    firmware allows."""
    own = limits_of(profile)
    limits = msgspec.structs.replace(
        own,
        target_c=own.target_c if target_c is None else target_c,
        down_c=own.down_c if down_c is None else down_c,
        up_c=own.up_c if up_c is None else up_c,
    )
    if limits.up_c < limits.target_c <= limits.down_c <= limits.soft_c:
        return limits
    raise ConfigError(
        f"thermal: up_c ({limits.up_c:g}), target_c ({limits.target_c:g}) and down_c ({limits.down_c:g}) do not fit "
        f"{profile.title}, where the firmware acts at {limits.soft_c:g} °C",
        hint="They must ascend, and down_c at most be the firmware's limit; those not given are the profile's",
        param="thermal",
    )


def cannot_wait(snapshot: Snapshot, limits: HeatLimits) -> bool:
    """Whether it is to be looked at at once: the chip is above its target, or the firmware acts by itself."""
    flags = snapshot.firmware.now
    if flags is not None and (flags.under_voltage or flags.soft_limit or flags.throttled):
        return True
    return snapshot.hottest_c is not None and snapshot.hottest_c > limits.target_c
