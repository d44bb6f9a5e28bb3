"""Temperature of a chip: a Foster network of resistances and capacities to the air, with or without a fan."""

from __future__ import annotations

import math

from magnitude.board.profile import FanStep, ThermalStage

# A fan goes down a step only this far below the step's own temperature (raspberrypi/documentation,
# frequency-management).
FAN_HYSTERESIS_C = 5.0


class Chip:
    """T = ambient + sum of stages; each stage follows dT/dt = (P * R - T) / tau, solved exactly for constant power.

    The fan changes the last stage's resistance, not its heat capacity, so that its time constant shrinks alike.
    """

    def __init__(self, stages: tuple[ThermalStage, ...], fan: tuple[FanStep, ...], ambient_c: float) -> None:
        self.ambient_c = ambient_c
        self.fan_step = 0
        self._fan = fan
        self._c_per_w = [stage.c_per_w for stage in stages]
        self._tau_s = [stage.tau_s for stage in stages]
        self._rise_c = [0.0] * len(stages)
        self._kept: dict[tuple[float, int], list[tuple[float, float]]] = {}

    @property
    def temp_c(self) -> float:
        return self.ambient_c + sum(self._rise_c)

    def settle(self, watts: float) -> None:
        """Put the chip where this power would hold it, with the fan as it runs now."""
        last = len(self._rise_c) - 1
        self._rise_c = [
            watts * c_per_w * (self._share if index == last else 1.0) for index, c_per_w in enumerate(self._c_per_w)
        ]

    def warm(self, temp_c: float) -> None:
        """Put the chip at this temperature, its stages as far up as in a steady state there."""
        total = sum(self._c_per_w)
        self._rise_c = [(temp_c - self.ambient_c) * c_per_w / total for c_per_w in self._c_per_w]
        self._turn_fan()

    def heat(self, watts: float, dt_s: float) -> None:
        """`watts` for `dt_s` seconds."""
        key = (dt_s, self.fan_step)
        factors = self._kept.get(key)
        if factors is None:
            if len(self._kept) > 1000:
                self._kept.clear()
            factors = self._kept[key] = self._factors(dt_s)
        rise_c = self._rise_c
        for index, (kept, c_per_w) in enumerate(factors):
            steady = watts * c_per_w
            rise_c[index] = steady + (rise_c[index] - steady) * kept
        if self._fan:
            self._turn_fan()

    @property
    def _share(self) -> float:
        return self._fan[self.fan_step - 1].resistance_share if self.fan_step else 1.0

    def _factors(self, dt_s: float) -> list[tuple[float, float]]:
        last = len(self._tau_s) - 1
        shares = [self._share if index == last else 1.0 for index in range(last + 1)]
        return [
            (math.exp(-dt_s / (tau_s * share)), c_per_w * share)
            for tau_s, c_per_w, share in zip(self._tau_s, self._c_per_w, shares, strict=True)
        ]

    def _turn_fan(self) -> None:
        temp_c = self.temp_c
        while self.fan_step < len(self._fan) and temp_c >= self._fan[self.fan_step].at_c:
            self.fan_step += 1
        while self.fan_step and temp_c < self._fan[self.fan_step - 1].at_c - FAN_HYSTERESIS_C:
            self.fan_step -= 1
