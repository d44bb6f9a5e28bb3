"""What is shown of the supply and of the tiers that it led to, in `/v1/magnitude/state` and the metrics."""

from __future__ import annotations

import msgspec

from magnitude.board.snapshot import Firmware, Power
from magnitude.governor.power import PowerGovernor, PowerLimits, Tier


class TierChange(msgspec.Struct, frozen=True, kw_only=True):
    """From `before` the tier went to `tier`, `ago_s` ago, and why."""

    tier: Tier
    before: Tier
    reason: str
    ago_s: float


class PowerState(msgspec.Struct, frozen=True, kw_only=True):
    """`reason` of the last change, `since_s` ago (None: there was none). `under_voltage` is the case now, or was
    since the boot; both are None where the firmware cannot be asked. `limits` are what the tier allows."""

    enabled: bool = True
    tier: Tier = "full"
    reason: str = ""
    since_s: float | None = None
    on_mains: bool | None = None
    battery_percent: float | None = None
    discharging: bool | None = None
    under_voltage: bool | None = None
    under_voltage_since_boot: bool | None = None
    limits: PowerLimits = PowerLimits()
    last_changes: list[TierChange] = []
    changes_total: int = 0


def power_state(
    governor: PowerGovernor, power: Power, firmware: Firmware, now_s: float, *, enabled: bool = True
) -> PowerState:
    """The newest change first."""
    now, since_boot = firmware.now, firmware.since_boot
    return PowerState(
        enabled=enabled,
        tier=governor.tier,
        reason=governor.reason,
        since_s=now_s - governor.changed_s if governor.changed_s is not None else None,
        on_mains=power.on_mains,
        battery_percent=power.battery_percent,
        discharging=power.discharging,
        under_voltage=now.under_voltage if now is not None else None,
        under_voltage_since_boot=since_boot.under_voltage if since_boot is not None else None,
        limits=governor.limits,
        last_changes=[
            TierChange(tier=change.tier, before=change.before, reason=change.reason, ago_s=now_s - at_s)
            for at_s, change in reversed(governor.changes)
        ],
        changes_total=governor.changes_total,
    )
