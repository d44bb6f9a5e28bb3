"""What to do about heat, before the board does. A pure state machine: it sees, and returns what is to be done.

Firmware that throttles takes whatever clock it likes, late and for everything alike: the chip saws between too
hot and too slow. This governor forecasts (`heat_model`) and settles instead on the fastest clocks that the chip
can hold (`operating_point`): by phase, because an answer waits for memory at clocks where a prompt still gains.

Below that lies a safety net that believes no model: from `down_c` on everything is reduced until the chip is
below `up_c`. Where clocks cannot be set, the engine pauses between its steps instead. Where no sensor answers,
what is unknown is taken to be warm.
"""

from __future__ import annotations

import math

import msgspec

from magnitude.governor.heat_model import HeatEstimate, HeatModel
from magnitude.governor.operating_point import DUTIES, Ladder, LoadMemory, Mix, Point, shares
from magnitude.governor.stuck_sensor import StuckSensor
from magnitude.governor.thermal_prior import HeatLimits, HeatPrior
from magnitude.governor.thermal_terms import (
    PHASES,
    Announce,
    Effect,
    HeatState,
    Phase,
    PreferSmaller,
    SetCaps,
    SetConcurrency,
    SetDuty,
    SetThreads,
    ThermalSight,
)
from magnitude.governor.write_budget import Urgency, WriteBudget

# Between two choices of the operating point, unless the chip is about to pass its target: the fast stages of a chip
# have settled by then, and the next choice sees what the last one did.
TUNE_EVERY_S = 10.0
# A faster point must leave this much below the target, a slower one is taken when it is passed: else noise of a
# sensor that counts whole degrees would move the clock.
UP_MARGIN_C = 0.5
# Clocks follow the phases as long as these change so many times a minute at most; each change is a write of the
# limited few (`write_budget`).
APART_CHANGES = 3.0
# How long a read-back may differ from what was written before it is written again.
SETTLE_S = 3.0
# What a hot chip may do must have it below `down_c` again after so long: the middle stages' time.
HOT_HORIZON_S = 30.0
# A chip this near to where the firmware acts is reduced to next to nothing.
LAST_RESORT_C = 0.5
# Below this duty one answer is written at a time: several would all come at less than half of their speed.
ONE_BELOW = 0.5
# Heat that costs more than this share of the speed asks for a smaller variant; it is given back once this much is
# there again. A smaller variant is another answer, so not for the first percents.
SMALLER_BELOW, SMALLER_UNTIL = 0.6, 0.8
SMALLER_AFTER_S = 30.0


class ThermalGovernor:
    """One board's governor. `apply` about once a second, and when a phase begins or ends."""

    def __init__(self, prior: HeatPrior, limits: HeatLimits) -> None:
        self.limits = limits
        self.prior = prior
        self.state: HeatState = "cool"
        self.reason = ""
        self.point = Point(len(prior.levels) - 1, len(prior.levels) - 1)
        self.forecast_c: float | None = None
        self._model = HeatModel(prior)
        self._ladder = Ladder(prior, self._model)
        self._load = LoadMemory(prior)
        self._sensor = StuckSensor(limits.down_c)
        self._budget = WriteBudget()
        self._caps: dict[str, int | None] = {}
        self._written_s = -math.inf
        self._tuned_s = -math.inf
        self._duty = 1.0
        self._limit: int | None = None
        self._smaller = False
        self._pressed_s: float | None = None
        self._wished: int | None = None
        self._seen = False
        self._now_s: float | None = None
        self._phase: Phase = "idle"
        self._changes = 0.0  # of phases, in the last minute or so

    @property
    def estimate(self) -> HeatEstimate:
        return self._model.estimate

    def caps(self, phase: Phase) -> dict[str, int | None]:
        """The clock limits that hold in a phase, by policy."""
        return self.prior.levels[self._level(phase)].caps_khz

    def apply(self, sight: ThermalSight, now_s: float) -> list[Effect]:
        """Look at the board, and return what is to be done about it."""
        dt_s = 0.0 if self._now_s is None else max(0.0, now_s - self._now_s)
        self._now_s = now_s
        stuck = sight.temp_c is not None and self._sensor.look(sight.temp_c, self._model.told_rise_c, now_s)
        if stuck:
            sight = msgspec.structs.replace(sight, temp_c=None)
        self._learn(sight, dt_s)
        effects: list[Effect] = []
        clocks = all(cluster.writable for cluster in sight.clusters if cluster.name in self.prior.levels[0].caps_khz)
        clocks = clocks and bool(sight.clusters)
        # What clocks allow that cannot be set: the highest, or what somebody else has limited them to.
        fixed = None if clocks else self._in_force(sight, self._ladder.top)
        mix = self._load.mix(sight.load)
        before = self.state
        self._judge(sight, stuck=stuck)
        urgent = self._choose(sight, mix, now_s, fixed=fixed)
        if self.state != before:
            effects.append(Announce(self.state, before, self.reason))
        effects += self._write(sight, now_s, urgent=urgent, clocks=fixed is None)
        effects += self._threads()
        effects += self._press(mix, now_s)
        return effects

    def _threads(self) -> list[Effect]:
        prefill = self.prior.prefill_threads
        decode = self.prior.levels[self.point.decode].decode[self.point.threads].threads
        if self._wished == decode:
            return []
        self._wished = decode
        why = "answers wait for memory, fewer threads read as fast" if decode < prefill else "answers need them all"
        return [SetThreads(prefill, decode, f"{prefill} threads for prompts, {decode} for answers: {why}")]

    def _learn(self, sight: ThermalSight, dt_s: float) -> None:
        load = sight.load
        if load.phase != self._phase:
            self._changes += 1
            self._phase = load.phase
        self._changes *= math.exp(-dt_s / 60.0)  # weighs the last minute
        prefill, decode = shares(load)
        at = msgspec.structs.replace(
            self.point,
            prefill=self._in_force(sight, self.point.prefill),
            decode=self._in_force(sight, self.point.decode),
            duty=self._duty,
        )
        self._load.add(load, at, dt_s)
        levels = self.prior.levels
        self._seen = self._seen or sight.temp_c is not None
        self._model.observe(
            levels[at.prefill].prefill_w * prefill * at.duty,
            levels[at.decode].decode[at.threads].watts * decode * at.duty,
            sight.temp_c,
            dt_s,
        )

    def _in_force(self, sight: ThermalSight, level: int) -> int:
        """The level that clocks really allow, where somebody else has set a lower limit."""
        for cluster in sight.clusters:
            if cluster.cap_khz is None or not cluster.opps_khz or cluster.name not in self.prior.levels[0].caps_khz:
                continue
            for number, one in enumerate(self.prior.levels[: level + 1]):
                if (one.caps_khz[cluster.name] or cluster.opps_khz[-1]) > cluster.cap_khz:
                    level = max(0, number - 1)
                    break
        return level

    def _judge(self, sight: ThermalSight, *, stuck: bool) -> None:
        """The state that the sensors speak for; what the chosen point makes of "cool" and "warm" comes after."""
        limits, temp_c = self.limits, sight.temp_c
        if temp_c is None:
            if self._seen or limits.expects_sensor:
                told = "the sensor is stuck" if stuck else f"no sensor has answered for {sight.age_s:.0f} s"
                self.state, self.reason = "blind", f"{told}; by the model {self._model.temp_c:.0f} °C"
            return
        if temp_c >= limits.down_c or sight.soft_limit:
            told = "the firmware limits clocks" if sight.soft_limit else f"at or above {limits.down_c:.0f} °C"
            self.state, self.reason = "hot", f"{temp_c:.1f} °C: {told}"
        elif self.state == "hot" and temp_c >= limits.up_c:
            self.reason = f"{temp_c:.1f} °C: until below {limits.up_c:.0f} °C"
        elif self.state in ("hot", "blind"):
            self.state, self.reason = "warm", f"{temp_c:.1f} °C"

    def _choose(self, sight: ThermalSight, mix: Mix, now_s: float, *, fixed: int | None) -> bool:
        """Choose the point. True when the clocks must follow at once."""
        if self.state == "hot":
            self.point = self._ladder.lowest(self._hot_duty(sight, fixed), fixed)
            return True
        if self.state == "blind":
            self.point = self._blind_point(fixed)
            return True
        temp_c = sight.temp_c
        if temp_c is None:
            return False  # a board that never had a sensor: its makers have not meant it to need one
        target_c = self.limits.target_c
        ahead = self._ladder.ahead(sight.load, self._load, temp_c)
        forecast_c, sd_c = self._ladder.forecast_c(self.point, mix, ahead)
        self.forecast_c = forecast_c
        passes = forecast_c + sd_c > target_c
        due = now_s - self._tuned_s >= TUNE_EVERY_S
        if not due and not (passes and temp_c > target_c - UP_MARGIN_C):
            return False
        apart = fixed is None and self._changes <= APART_CHANGES
        point = self._ladder.best(mix, ahead, target_c, fixed=fixed, apart=apart)
        if self._ladder.speed(point, mix) > self._ladder.speed(self.point, mix):
            point = self._ladder.best(mix, ahead, target_c - UP_MARGIN_C, fixed=fixed, apart=apart)
        self._tuned_s = now_s
        self.point = point
        limited = point.prefill < self._ladder.top or point.duty < 1
        self.state = "warm" if limited else "cool"
        self.reason = f"{temp_c:.1f} °C now, {forecast_c:.1f} °C ahead, {target_c:.1f} °C at most"
        return passes and temp_c > target_c

    def _hot_duty(self, sight: ThermalSight, fixed: int | None) -> float:
        temp_c = sight.temp_c if sight.temp_c is not None else self.limits.down_c
        if temp_c >= self.limits.soft_c - LAST_RESORT_C:
            return DUTIES[-1]
        outlook = self._model.outlook(HOT_HORIZON_S, temp_c)
        for duty in DUTIES:
            full = self._ladder.full(self._ladder.lowest(duty, fixed))
            if outlook.at(full, full)[0] < self.limits.down_c:
                return duty
        return DUTIES[-1]

    def _blind_point(self, fixed: int | None) -> Point:
        believed_c = self._model.temp_c
        if self._seen and fixed is None:
            for number in range(self._ladder.top, 0, -1):
                if self._ladder.holds(Point(number, number), believed_c, self.limits.target_c):
                    return Point(number, number)
        for duty in DUTIES:
            point = self._ladder.lowest(duty, fixed)
            if self._ladder.holds(point, believed_c, self.limits.target_c):
                return point
        return self._ladder.lowest(DUTIES[-1], fixed)

    def _level(self, phase: Phase) -> int:
        if phase == "decode":
            return self.point.decode
        if phase == "idle":
            return 0
        return self.point.prefill

    def _write(self, sight: ThermalSight, now_s: float, *, urgent: bool, clocks: bool) -> list[Effect]:
        effects: list[Effect] = []
        duty = self.point.duty
        if duty != self._duty:
            self._duty = duty
            effects.append(SetDuty(duty, self.reason))
        if not clocks:
            return effects
        phase = sight.load.phase
        caps = self.caps(phase)
        same = caps == self._caps or (not self._caps and all(cap is None for cap in caps.values()))
        if same and not self._lost(sight, now_s):
            return effects
        urgency = self._urgency(caps, phase, urgent=urgent)
        if not self._budget.allows(urgency, now_s):
            return effects
        self._budget.spend(now_s)
        self._caps, self._written_s = dict(caps), now_s
        why = "rest between requests" if phase == "idle" and self.state in ("cool", "warm") else self.reason
        effects.append(SetCaps(dict(caps), f"{phase}: {why}"))
        return effects

    def _urgency(self, caps: dict[str, int | None], phase: Phase, *, urgent: bool) -> Urgency:
        if urgent:
            return "heat"
        if phase == "idle":
            return "rest"
        faster = any(_khz(caps[name]) > _khz(self._caps.get(name)) for name in caps)
        resting = self._caps == self.prior.levels[0].caps_khz
        return "speed" if faster and resting else "tuning"

    def _lost(self, sight: ThermalSight, now_s: float) -> bool:
        """Whether a limit that was written is not in force any more: the kernel makes a policy anew when a CPU comes
        back. A lower one is somebody else's, and stays."""
        if now_s - self._written_s < SETTLE_S:
            return False
        return any(
            cluster.cap_khz is not None and cluster.cap_khz > _khz(self._caps.get(cluster.name))
            for cluster in sight.clusters
            if cluster.name in self._caps
        )

    def _press(self, mix: Mix, now_s: float) -> list[Effect]:
        """What goes beyond clocks: fewer at once where the engine has to pause, a smaller variant where heat costs
        much of the speed for a while."""
        effects: list[Effect] = []
        limit = 1 if self.point.duty < ONE_BELOW else None
        if limit != self._limit:
            self._limit = limit
            effects.append(SetConcurrency(limit, self.reason))
        speed = self._ladder.speed(self.point, mix)
        if speed < SMALLER_BELOW or (self._smaller and speed < SMALLER_UNTIL):
            self._pressed_s = self._pressed_s if self._pressed_s is not None else now_s
        else:
            self._pressed_s = None
        smaller = self._pressed_s is not None and now_s - self._pressed_s >= SMALLER_AFTER_S
        if smaller != self._smaller and (smaller or self._pressed_s is None):
            self._smaller = smaller
            effects.append(PreferSmaller(smaller, f"heat leaves {speed:.0%} of the speed"))
        return effects


def _khz(cap_khz: int | None) -> float:
    return float("inf") if cap_khz is None else cap_khz


class ThermalState(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of the governor."""

    state: HeatState
    reason: str
    forecast_c: float | None
    duty: float
    caps_khz: dict[str, dict[str, int | None]]
    estimate: HeatEstimate


def state_of(governor: ThermalGovernor) -> ThermalState:
    return ThermalState(
        state=governor.state,
        reason=governor.reason,
        forecast_c=governor.forecast_c,
        duty=governor.point.duty,
        caps_khz={phase: governor.caps(phase) for phase in PHASES},
        estimate=governor.estimate,
    )
