"""What slows a hot board down without being asked: the Raspberry Pi's firmware, or the kernel's step-wise cooling."""

from __future__ import annotations

from typing import Protocol

from magnitude.board.profile import BoardProfile, Trips
from magnitude.board.snapshot import Firmware, FirmwareFlags

# Above the soft limit the Pi's firmware runs a share of the highest clock: 2256 of 2400 MHz at 82.9 °C, so 2 % less
# for each degree above 80 °C (raspberrypi/rpi-eeprom#518). In steps of 1 %.
FIRMWARE_SHARE_PER_C = 0.02
FIRMWARE_STEP = 0.01
# assumed: at the hard limit it runs the lowest clock until the chip is this much cooler; the same report sees the
# clock go down to 1.5 GHz and bounce back, but gives no figure.
FIRMWARE_RELEASE_C = 2.0
# Trips of the RK3588's device tree have this hysteresis (rk3588-base.dtsi).
KERNEL_HYSTERESIS_C = 2.0
# Both look many times a second (the kernel every 100 ms by `polling-delay-passive` in rk3588-base.dtsi); here a look
# is a step of the simulation while the chip is hot.
LOOK_S = 0.1


class Throttle(Protocol):
    """Limits by cluster, in kHz."""

    limits_khz: list[float]

    def look(self, temp_c: float, dt_s: float) -> None:
        """The chip has been at about this temperature for `dt_s` seconds."""

    def told(self) -> Firmware:
        """What a reader of the board's flags is told."""

    def cooling_caps(self) -> list[float] | None:
        """Limits that show in the clock policies' own maximum; None: they do not show there."""


def throttle_of(profile: BoardProfile) -> Throttle:
    """The one that this board has."""
    clocks = [tuple(opp.khz for opp in cluster.opps) for cluster in profile.clusters]
    return (PiFirmware if profile.trips.by == "firmware" else StepWise)(profile.trips, clocks)


class PiFirmware:
    """Progressively slower from the soft limit on, the lowest clock at the hard one. The kernel is not told: its
    clocks stay what it asked for. A limit is never above what the kernel asks for (rpi-eeprom#544)."""

    def __init__(self, trips: Trips, clocks: list[tuple[int, ...]]) -> None:
        self._trips = trips
        self._clocks = clocks
        self._now = FirmwareFlags()
        self._since = FirmwareFlags()
        self.limits_khz = [float(opps[-1]) for opps in clocks]

    def look(self, temp_c: float, dt_s: float) -> None:
        hard = temp_c >= self._trips.hard_c or (
            self._now.throttled and temp_c > self._trips.hard_c - FIRMWARE_RELEASE_C
        )
        soft = temp_c >= self._trips.soft_c
        if not soft and not hard:
            if self._now.soft_limit:
                self._now = FirmwareFlags()
                self.limits_khz = [float(opps[-1]) for opps in self._clocks]
            return
        steps = int((temp_c - self._trips.soft_c) * FIRMWARE_SHARE_PER_C / FIRMWARE_STEP)
        share = 1.0 - steps * FIRMWARE_STEP
        self.limits_khz = [float(opps[0]) if hard else max(opps[0], share * opps[-1]) for opps in self._clocks]
        self._now = FirmwareFlags(soft_limit=soft, clock_capped=hard or steps > 0, throttled=hard)
        self._since = FirmwareFlags(
            soft_limit=True,
            clock_capped=self._since.clock_capped or self._now.clock_capped,
            throttled=self._since.throttled or hard,
        )

    def told(self) -> Firmware:
        return Firmware(now=self._now, since_boot=self._since)

    def cooling_caps(self) -> list[float] | None:
        return None


class StepWise:
    """The kernel's step_wise governor on passive trips: one operating point down at each look above the trip while
    the chip does not get cooler, one up at each look below the trip's hysteresis."""

    def __init__(self, trips: Trips, clocks: list[tuple[int, ...]]) -> None:
        self._trips = trips
        self._clocks = clocks
        self._state = 0
        self._most = max(len(opps) for opps in clocks) - 1
        self._before_c = 0.0
        self._since_look_s = 0.0
        self.limits_khz = [float(opps[-1]) for opps in clocks]

    def look(self, temp_c: float, dt_s: float) -> None:
        self._since_look_s += dt_s
        if self._since_look_s < LOOK_S - 1e-9:
            return
        self._since_look_s = 0.0
        state = self._state
        if temp_c >= self._trips.soft_c:
            if temp_c >= self._before_c:
                state = min(state + 1, self._most)
        elif temp_c < self._trips.soft_c - KERNEL_HYSTERESIS_C and state:
            state -= 1
        self._before_c = temp_c
        if state != self._state:
            self._state = state
            self.limits_khz = [float(opps[max(0, len(opps) - 1 - state)]) for opps in self._clocks]

    def told(self) -> Firmware:
        return Firmware()

    def cooling_caps(self) -> list[float] | None:
        return self.limits_khz if self._state else None
