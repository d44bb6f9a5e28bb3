"""How a chip's temperature follows what it computes, learned while it does.

The way of heat from the chip to the air is a chain of stages (a Foster network): a constant power P adds r·P
degrees at each, after its time constant. The stages' proportions come from the board's profile; what differs
from board to board (a case, a cooler, the air around it, the chip's own leakage) is learned:

    T = ambient + remains · exp(-t/τ) + g_prefill · X_prefill + g_decode · X_decode + X_idle

X are the temperatures that the profile predicts for the power of each kind of work, ambient and the gains g are
estimated by a Kalman filter, and `remains` is what a chip that was warm when this began still loses. The time
constant is found by running five such models side by side, whose stages are slower or faster than the profile's,
and going by the one that has predicted best.

Pure: time comes in as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from magnitude.board.power_use import LEAKAGE_AT_C, leakage_w
from magnitude.governor.thermal_prior import HeatPrior

# How much slower or faster than the profile's the stages of the five models are. Capacity and resistance of the same
# board in another case differ by some 20 % each; a factor of 1.6 covers both at their ends.
TAU_SCALES = (0.64, 0.8, 1.0, 1.25, 1.56)
# What the filter believes at first: a room, and a profile that is right within a quarter.
_AMBIENT_C, _AMBIENT_SD_C = 25.0, 12.0
_GAIN_SD = 0.25
_REMAINS_SD_C = 15.0
# How fast these may change: a room by 1.5 °C in an hour, a gain (dust, another case) by a tenth in a day.
_AMBIENT_DRIFT = 1.5**2 / 3600
_GAIN_DRIFT = 0.1**2 / 86400
# Sensors count in steps of half a degree to a whole one, and what is not modelled (other programs, a draught) comes
# and goes over minutes. The filter takes each second's sample as worth that much less.
_NOISE_C2 = 4.0
# Memory of how well a model predicts.
_SCORE_TAU_S = 600.0
# Memory of what the model misses just now: other programs' heat lasts about as long.
_MISS_TAU_S = 10.0
# Memory of the warmest air that was believed in. A sensor that reads too cold teaches that the air is cold, within
# seconds on a board that is new to the governor; it is found out within a small part of this time.
_AMBIENT_TAU_S = 600.0
# Another model is gone by only when it is clearly better, so that the forecast does not jump between equals.
_CLEARLY = 0.9
# A reading this much below what the model is sure of is doubted: beyond three standard deviations, and more than
# noise and a draught make. How fast the filter gives in, in square degrees a second: after a minute it has moved by
# 5 °C.
_DOUBT_C = 4.0
_CHANGE_DRIFT = 0.5
# Stages faster than this warm up within one prompt or answer, slower ones only feel the mean of many.
PEAK_TAU_S = 15.0
# Gains beyond these are no board but a broken sensor.
_GAIN_BOUNDS = (0.3, 3.0)

_KINDS = ("idle", "prefill", "decode")


class HeatEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What is believed of the board. `c_per_w` is the resistance from chip to air in °C per watt of the profile's
    power, `tau_s` the time constant of the slowest stage; the gains compare prefill and decode with the profile."""

    ambient_c: float
    c_per_w: float
    tau_s: float
    prefill_gain: float
    decode_gain: float
    miss_c: float


class _Model:
    """One of the five: stages of its own time constants, and a Kalman filter over ambient, remains and gains."""

    def __init__(self, prior: HeatPrior, scale: float, idle_w: float) -> None:
        self.c_per_w = [stage.c_per_w for stage in prior.stages]
        self.tau_s = [stage.tau_s * scale for stage in prior.stages]
        # A chip that does nothing is warm from that.
        self.rises = {"idle": [r * idle_w for r in self.c_per_w], "prefill": [0.0] * len(self.tau_s)}
        self.rises["decode"] = [0.0] * len(self.tau_s)
        self.remains = 1.0
        self.theta = [_AMBIENT_C, 0.0, 1.0, 1.0]
        sds = (_AMBIENT_SD_C, _REMAINS_SD_C, _GAIN_SD, _GAIN_SD)
        self.cov = [[sd * sd if row == column else 0.0 for column in range(4)] for row, sd in enumerate(sds)]
        self.score: float | None = None

    def advance(self, watts: tuple[float, float, float], dt_s: float) -> None:
        """`watts` of the idle chip, of prefill and of decode."""
        for number, (resistance, tau_s) in enumerate(zip(self.c_per_w, self.tau_s, strict=True)):
            keep = math.exp(-dt_s / tau_s)
            for kind, power_w in zip(_KINDS, watts, strict=True):
                rises = self.rises[kind]
                rises[number] = rises[number] * keep + resistance * power_w * (1 - keep)
        self.remains *= math.exp(-dt_s / self.tau_s[-1])
        self.cov[0][0] += _AMBIENT_DRIFT * dt_s
        self.cov[2][2] += _GAIN_DRIFT * dt_s
        self.cov[3][3] += _GAIN_DRIFT * dt_s

    def regressors(self) -> list[float]:
        return [1.0, self.remains, sum(self.rises["prefill"]), sum(self.rises["decode"])]

    def predicted_c(self) -> float:
        return _dot(self.theta, self.regressors()) + sum(self.rises["idle"])

    def correct(self, temp_c: float, dt_s: float) -> None:
        phi = self.regressors()
        spread = [_dot(row, phi) for row in self.cov]
        read_miss_c = temp_c - self.predicted_c()
        miss_c = self.believable(read_miss_c)
        if miss_c > read_miss_c:
            # Colder than can be: a fault, or something has changed. If it stays, it is believed within minutes.
            self.cov[0][0] += _CHANGE_DRIFT * dt_s
        # A sample a second; more of them in the same second say no more.
        noise = _NOISE_C2 / min(1.0, max(dt_s, 0.05))
        certainty = _dot(phi, spread) + noise
        gain = [one / certainty for one in spread]
        self.theta = [value + step * miss_c for value, step in zip(self.theta, gain, strict=True)]
        for number in (2, 3):
            self.theta[number] = min(max(self.theta[number], _GAIN_BOUNDS[0]), _GAIN_BOUNDS[1])
        self.cov = [[self.cov[row][column] - gain[row] * spread[column] for column in range(4)] for row in range(4)]
        forget = math.exp(-dt_s / _SCORE_TAU_S)
        self.score = miss_c**2 if self.score is None else self.score * forget + miss_c**2 * (1 - forget)

    def believable(self, miss_c: float) -> float:
        """A miss as far as it is taken for true: a chip that should be hot and reads cold is not believed at once."""
        phi = self.regressors()
        variance = _dot(phi, [_dot(row, phi) for row in self.cov])
        return max(miss_c, -_DOUBT_C - 3 * math.sqrt(max(0.0, variance)))

    def outlook(self, horizon_s: float, idle_w: float) -> Outlook:
        phi = [1.0, self.remains * math.exp(-horizon_s / self.tau_s[-1]), 0.0, 0.0]
        idle_c = slow = fast = 0.0
        for number, (resistance, tau_s) in enumerate(zip(self.c_per_w, self.tau_s, strict=True)):
            keep = math.exp(-horizon_s / tau_s)
            added = resistance * (1 - keep)
            if tau_s < PEAK_TAU_S:
                fast += added
            else:
                slow += added
            idle_c += self.rises["idle"][number] * keep + added * idle_w
            phi[2] += self.rises["prefill"][number] * keep
            phi[3] += self.rises["decode"][number] * keep
        change = [then - now for then, now in zip(phi, self.regressors(), strict=True)]
        spread = [_dot(row, change) for row in self.cov]
        return Outlook(
            base_c=_dot(self.theta, phi) + idle_c,
            slow_c_per_w=slow,
            fast_c_per_w=fast,
            gains=(self.theta[2], self.theta[3]),
            variance=_dot(change, spread),
            slopes=(spread[2], spread[3]),
            block=(self.cov[2][2], self.cov[2][3], self.cov[3][3]),
        )


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """The temperature at a horizon as a function of power: what is there already leads to `base_c`, and each watt
    adds to it, by the slow stages that feel the mean and the fast ones that feel what runs at the end. The rest is
    the covariance of the change until then."""

    base_c: float
    slow_c_per_w: float
    fast_c_per_w: float
    gains: tuple[float, float]
    variance: float
    slopes: tuple[float, float]
    block: tuple[float, float, float]

    def at(self, mean: tuple[float, float], peak: tuple[float, float]) -> tuple[float, float]:
        """Temperature, and the standard deviation of its difference to now, for mean and peak power of prefill and
        decode."""
        prefill = self.slow_c_per_w * mean[0] + self.fast_c_per_w * peak[0]
        decode = self.slow_c_per_w * mean[1] + self.fast_c_per_w * peak[1]
        variance = self.variance + 2 * (prefill * self.slopes[0] + decode * self.slopes[1])
        variance += prefill * prefill * self.block[0] + decode * decode * self.block[2]
        variance += 2 * prefill * decode * self.block[1]
        temp_c = self.base_c + self.gains[0] * prefill + self.gains[1] * decode
        return temp_c, math.sqrt(max(0.0, variance))


class HeatModel:
    """Feed it with what ran and what was measured; ask it what would come."""

    def __init__(self, prior: HeatPrior) -> None:
        self._prior = prior
        self._models = [_Model(prior, scale, self.idle_w(LEAKAGE_AT_C)) for scale in TAU_SCALES]
        self._told = self._best = self._models[TAU_SCALES.index(1.0)]
        self._miss_c = 0.0
        self._warmest_ambient_c = _AMBIENT_C

    def idle_w(self, temp_c: float) -> float:
        """Power of the idle chip at a temperature."""
        power = self._prior.power
        return power.chip_idle_w + leakage_w(power, temp_c)

    def observe(self, prefill_w: float, decode_w: float, temp_c: float | None, dt_s: float) -> None:
        """`dt_s` have passed in which the work took so much power; `temp_c` is measured now, None: nothing was."""
        believed_c = temp_c if temp_c is not None else self.temp_c
        watts = (self.idle_w(believed_c), prefill_w, decode_w)
        for model in self._models:
            model.advance(watts, dt_s)
        if temp_c is None:
            return
        for model in self._models:
            model.correct(temp_c, dt_s)
        best = min(self._models, key=lambda model: model.score or 0.0)
        if (best.score or 0.0) < _CLEARLY * (self._best.score or 0.0):
            self._best = best
        keep = math.exp(-dt_s / _MISS_TAU_S)
        miss_c = self._best.believable(temp_c - self._best.predicted_c())
        self._miss_c = self._miss_c * keep + miss_c * (1 - keep)
        forget = math.exp(-dt_s / _AMBIENT_TAU_S)
        ambient_c = self._best.theta[0]
        self._warmest_ambient_c = max(ambient_c, ambient_c + (self._warmest_ambient_c - ambient_c) * forget)

    @property
    def temp_c(self) -> float:
        """What the chip has now, as believed: from the model, which goes on where a sensor falls silent."""
        return self._best.predicted_c() + self._miss_c

    @property
    def told_rise_c(self) -> float:
        """How much warmer than an idle one the chip is by what it computed, if the profile is right: a sensor that is
        not right has taught the gains nonsense."""
        return sum(self._told.rises["prefill"]) + sum(self._told.rises["decode"])

    def outlook(self, horizon_s: float, temp_c: float) -> Outlook:
        """What any power would lead to in `horizon_s` seconds; the chip idles as one of `temp_c` does."""
        found = self._best.outlook(horizon_s, self.idle_w(temp_c))
        return msgspec.structs.replace(found, base_c=found.base_c + self._miss_c)

    def settles_c(
        self, work_w: tuple[float, float], temp_c: float, *, ambient_margin_c: float = 0.0, gain_margin: float = 0.0
    ) -> float:
        """Where a constant power of prefill and decode would lead in the end, with the leakage of a chip at `temp_c`.
        The margins make it the worse case."""
        model = self._best
        # Not below the profile's, nor in cooler air than before: what made the sensor silent may have made it wrong
        # before.
        prefill, decode = (max(1.0, gain) for gain in model.theta[2:])
        rise = 1 + gain_margin
        resistance = sum(model.c_per_w)
        watts = self.idle_w(temp_c) + prefill * work_w[0] + decode * work_w[1]
        return self._warmest_ambient_c + ambient_margin_c + resistance * rise * watts

    @property
    def estimate(self) -> HeatEstimate:
        ambient_c, _, prefill, decode = self._best.theta
        return HeatEstimate(
            ambient_c=ambient_c,
            c_per_w=sum(self._best.c_per_w) * (prefill + decode) / 2,
            tau_s=self._best.tau_s[-1],
            prefill_gain=prefill,
            decode_gain=decode,
            miss_c=self._miss_c,
        )


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    """Of vectors of four: written out, this runs often."""
    return left[0] * right[0] + left[1] * right[1] + left[2] * right[2] + left[3] * right[3]
