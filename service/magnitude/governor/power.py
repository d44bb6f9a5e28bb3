"""How much the board may take from its supply. A pure state machine: it sees, and returns what is to be done.

Three tiers: `full` on mains, `saving`, `least`. Down goes at once, to whatever the facts of the moment ask for; up
goes one tier at a time, each after a while in which nothing asked for less, so that a plug that wobbles or a supply
that gives way under load does not make the service swing.

What the firmware remembers of earlier under-voltage asks for nothing: only what is the case now does.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Literal

import msgspec

from magnitude.board.snapshot import Firmware, Power

Tier = Literal["full", "saving", "least"]
TIERS: tuple[Tier, ...] = ("full", "saving", "least")
_FULL, _SAVING, _LEAST = range(len(TIERS))

# Five dips of a supply that is too weak: what a person looks through.
SHOWN_CHANGES = 10


class PowerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a tier allows. `clock_share` of each cluster's highest clock; `concurrent` generations at once, None: as
    planned. The others are wishes to the policy: a smaller variant, an earlier exit, and `input_scale` of the usual
    resolution of images."""

    clock_share: float = 1.0
    concurrent: int | None = None
    prefer_smaller: bool = False
    early_exit: bool = False
    input_scale: float = 1.0


class PowerRules(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds in percent of the battery, times in s."""

    # A third left is when people begin to look for a charger; the last sixth is what a clean stop and the owner's own
    # use of the device are kept for.
    battery_saving_percent: float = 30.0
    battery_least_percent: float = 15.0
    # Gauges jump by several percent when the load goes, because the voltage recovers; and what is saved must not be
    # spent again at once. So up again at 40 and 25.
    hysteresis_percent: float = 10.0
    # A plug that is being pushed in bounces for seconds, a charger negotiates for some more.
    calm_s: float = 60.0
    # Where full clock leads back to under-voltage, the next attempt waits for twice as long, up to this. A supply
    # that is too weak for good then costs two dips an hour.
    under_voltage_calm_most_s: float = 1800.0
    # It comes and goes with each burst of work. What is quiet for so long is over.
    under_voltage_gap_s: float = 10.0
    # Caps are in force within a second or two. Half a minute later `saving` has not helped.
    under_voltage_least_s: float = 30.0
    # A gauge that has fallen silent is believed for so long: a driver that is loaded anew takes seconds, and a
    # battery loses a few percent.
    stale_s: float = 600.0
    # Power of the cores goes with clock and voltage squared. On the RK3588's big cores (rk3588-opp.dtsi of Linux)
    # 2.4 GHz take 1.0 V and 1.6 GHz 0.76 V: two thirds of the clock at two fifths of the power. Answers, bound by
    # memory, lose less than a third.
    saving_clock_share: float = 0.7
    # At half of the clock (0.675 V) it is a quarter of the power. Less is not to be had: that is the lowest clock
    # there, and a Raspberry Pi 5's is 1.5 of 2.4 GHz.
    least_clock_share: float = 0.5
    # Two rows share each read of the weights, which is most of the energy of an answer, and compute half as much at a
    # time as four.
    saving_concurrent: int = 2

    @property
    def under_voltage_calm_s(self) -> float:
        """Under-voltage comes with the load, so only more load finds out whether the supply carries it: two minutes
        by default, in which a board that answers now and then has answered."""
        return 2 * self.calm_s


class SetTier(msgspec.Struct, frozen=True):
    """From `before` the tier went to `tier`."""

    tier: Tier
    before: Tier
    reason: str


PowerEffect = SetTier


def wrong_percents(saving_percent: float, least_percent: float) -> str | None:
    """Why these cannot be the levels of a battery at which saving begins, or None."""
    if least_percent > saving_percent:
        return f"at {least_percent:g} % least is allowed, and at {saving_percent:g} % saving only begins"
    return None


def limits_of(tier: Tier, rules: PowerRules | None = None) -> PowerLimits:
    """What `tier` allows."""
    rules = rules or PowerRules()
    if tier == "saving":
        return PowerLimits(
            clock_share=rules.saving_clock_share, concurrent=rules.saving_concurrent, prefer_smaller=True
        )
    if tier == "least":
        return PowerLimits(
            clock_share=rules.least_clock_share,
            concurrent=1,
            prefer_smaller=True,
            early_exit=True,
            # A quarter of the pixels, and of the work of an image's encoder.
            input_scale=0.5,
        )
    return PowerLimits()


def cap_khz(opps_khz: Sequence[int], max_khz: int | None, clock_share: float) -> int | None:
    """The highest clock that the hardware has (`opps_khz`, else any) within `clock_share` of its highest one; its
    lowest one where none is. None: no cap, because all is allowed or nothing is known."""
    highest = max(opps_khz, default=max_khz)
    if clock_share >= 1.0 or not highest:
        return None
    allowed = highest * clock_share
    if not opps_khz:
        return int(allowed)
    return max((khz for khz in opps_khz if khz <= allowed), default=min(opps_khz))


class PowerGovernor:
    """Feed it what each snapshot says."""

    def __init__(self, rules: PowerRules | None = None) -> None:
        self.rules = rules or PowerRules()
        self.reason = ""  # of the last change
        self.changed_s: float | None = None
        self._level = _FULL
        self._battery_level = _FULL
        self.changes: deque[tuple[float, SetTier]] = deque(maxlen=SHOWN_CHANGES)
        self.changes_total = 0
        self._now_s = -math.inf
        self._calm_since_s: float | None = None
        self._told_s = -math.inf  # when the supply last said anything
        self._supply = Power()
        self._under_voltage_since_s: float | None = None
        self._under_voltage_s = -math.inf  # when it was last the case
        self._under_voltage_calm_s = self.rules.under_voltage_calm_s
        self._risen_s: float | None = None

    @property
    def tier(self) -> Tier:
        return TIERS[self._level]

    @property
    def limits(self) -> PowerLimits:
        return limits_of(self.tier, self.rules)

    def apply(self, power: Power, firmware: Firmware, now_s: float) -> list[PowerEffect]:
        """`now_s` is monotonic; a time before the last one counts as the last one."""
        now_s = self._now_s = max(self._now_s, now_s)
        by_supply, supply_says = self._by_supply(power, now_s)
        by_voltage, voltage_says = self._by_voltage(firmware, now_s)
        target = max(by_supply, by_voltage)
        says = voltage_says if by_voltage >= by_supply and voltage_says else supply_says
        if target > self._level:
            self._calm_since_s = None
            return self._enter(target, says, now_s)
        if target == self._level:
            self._calm_since_s = None
            return []
        if self._calm_since_s is None:
            self._calm_since_s = now_s
        voltage_calm = now_s - self._under_voltage_s >= self._under_voltage_calm_s
        if now_s - self._calm_since_s < self.rules.calm_s or not voltage_calm:
            return []
        self._calm_since_s = now_s
        self._risen_s = now_s
        return self._enter(self._level - 1, says, now_s)

    # --- supply ---

    def _by_supply(self, power: Power, now_s: float) -> tuple[int, str]:
        """The tier that the supply asks for, and what it says."""
        if power.on_mains is None and power.discharging is None and power.battery_percent is None:
            if now_s - self._told_s >= self.rules.stale_s:
                self._supply = Power()
        else:
            self._supply, self._told_s = power, now_s
        power = self._supply
        percent = power.battery_percent
        if power.discharging is False or (power.on_mains and not power.discharging):
            self._battery_level = _FULL
            return _FULL, "on mains" if power.on_mains else "the battery is not in use"
        if percent is not None:
            # It feeds the board, or nobody says that it does not. On mains, too: then the charger gives too little.
            self._battery_level = self._by_percent(percent)
            return self._battery_level, f"battery at {percent:.0f} %"
        if power.on_mains:
            self._battery_level = _FULL
            return _FULL, "on mains"
        if power.on_mains is None and power.discharging is None:
            self._battery_level = _FULL
            return _FULL, "nothing is known of the supply"
        return max(self._battery_level, _SAVING), "on battery, and its level is not told"

    def _by_percent(self, percent: float) -> int:
        rules = self.rules
        thresholds = (rules.battery_saving_percent, rules.battery_least_percent)
        level = sum(percent <= threshold for threshold in thresholds)
        while (
            level < self._battery_level and percent < thresholds[self._battery_level - 1] + rules.hysteresis_percent
        ):
            level += 1
        return level

    # --- under-voltage ---

    def _by_voltage(self, firmware: Firmware, now_s: float) -> tuple[int, str]:
        """The tier that under-voltage asks for while it lasts, and what is said of it."""
        rules, flags = self.rules, firmware.now
        quiet_s = now_s - self._under_voltage_s
        if flags is None:
            # Unknown is not fine: nothing is given back until the firmware tells again, or it is long ago.
            known = self._under_voltage_since_s is not None and quiet_s < rules.stale_s
            return (self._level if known else _FULL), ""
        if not flags.under_voltage:
            if quiet_s >= rules.under_voltage_gap_s:
                self._under_voltage_since_s = None
            return _FULL, ""
        self._under_voltage_s = now_s
        if self._under_voltage_since_s is None:
            self._under_voltage_since_s = now_s
            self._wait_longer(now_s)
        lasts_s = now_s - self._under_voltage_since_s
        if lasts_s >= rules.under_voltage_least_s:
            return _LEAST, f"the supply's voltage has been too low for {lasts_s:.0f} s"
        return _SAVING, "the supply's voltage is too low"

    def _wait_longer(self, now_s: float) -> None:
        """The next way up takes twice as long when the last one has led here, and as long as usual otherwise."""
        if self._risen_s is None:
            return  # it was not the way up
        rules = self.rules
        led_here = now_s - self._risen_s < self._under_voltage_calm_s
        most_s = max(rules.under_voltage_calm_most_s, rules.under_voltage_calm_s)
        longer_s = min(2 * self._under_voltage_calm_s, most_s)
        self._under_voltage_calm_s = longer_s if led_here else rules.under_voltage_calm_s
        self._risen_s = None

    def _enter(self, level: int, reason: str, now_s: float) -> list[PowerEffect]:
        before, self._level = self._level, level
        self.reason, self.changed_s = reason, now_s
        change = SetTier(TIERS[level], TIERS[before], reason)
        self.changes.append((now_s, change))
        self.changes_total += 1
        return [change]
