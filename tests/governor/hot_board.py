"""A chip with a clock and a heat of its own, in simulated time: it does what the thermal governor asks for.

Its resistance, capacity, power and air differ from what the governor was told of it. Nothing throttles it but the
governor, so that what the governor does is all there is to see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from magnitude.board.power_use import LEAKAGE_AT_C, leakage_w
from magnitude.board.profile import PowerProfile, ThermalStage
from magnitude.governor.thermal import ThermalGovernor
from magnitude.governor.thermal_prior import Answering, HeatLimits, HeatPrior, Level
from magnitude.governor.thermal_terms import (
    ClusterSight,
    Effect,
    LoadSight,
    Phase,
    SetCaps,
    SetDuty,
    SetThreads,
    ThermalSight,
)

OPPS_KHZ = tuple(range(1_500_000, 2_400_001, 100_000))
POLICY = "policy0"
LIMITS = HeatLimits(target_c=78.0, down_c=79.5, up_c=73.0, soft_c=80.0)
HARD_C = 85.0
STAGES = (
    ThermalStage(c_per_w=2.0, tau_s=3.0),
    ThermalStage(c_per_w=3.0, tau_s=40.0),
    ThermalStage(c_per_w=6.0, tau_s=350.0),
)
SUBSTEP_S = 0.5


def prior(
    opps_khz: Sequence[int] = OPPS_KHZ, *, watts: float = 6.0, stages: Sequence[ThermalStage] = STAGES
) -> HeatPrior:
    """A board whose prompts take `watts` at the highest clock, and whose answers are bound by memory."""
    levels = []
    for khz in opps_khz:
        share = khz / opps_khz[-1]
        volts = 0.72 + 0.18 * (khz - opps_khz[0]) / max(1, opps_khz[-1] - opps_khz[0])
        relative = share * (volts / 0.9) ** 2
        levels.append(
            Level(
                caps_khz={POLICY: None if khz == opps_khz[-1] else khz},
                prefill_w=watts * relative,
                prefill_rate=share,
                decode=tuple(
                    Answering(
                        threads, watts * heat * relative + 0.5, rate / (0.86 * max(1.0, knee / share) + 0.14 / share)
                    )
                    for threads, heat, knee, rate in ((2, 0.4, 0.7, 1.08), (4, 0.65, 0.5, 1.0))
                ),
            )
        )
    return HeatPrior(
        levels=tuple(levels),
        stages=tuple(stages),
        power=PowerProfile(
            chip_idle_w=2.0, board_idle_w=0.0, leakage_w=0.3, leakage_doubles_c=30.0, stalled_activity=0.6
        ),
        prefill_threads=4,
    )


class Differs(NamedTuple):
    """How the real board differs from its profile: factors, and the air's temperature in °C."""

    resistance: float = 1.0
    capacity: float = 1.0
    power: float = 1.0
    ambient_c: float = 25.0


AS_TOLD = Differs()


class Tick(NamedTuple):
    now_s: float
    temp_c: float
    phase: Phase
    cap_khz: int | None
    duty: float
    state: str


Sensor = Callable[[float, float], tuple[float | None, float]]


def good_sensor(temp_c: float, now_s: float) -> tuple[float | None, float]:
    return temp_c, 0.1


class HotBoard:
    """`sensor` maps the true temperature and the time to what is read, and its age."""

    def __init__(
        self,
        told: HeatPrior,
        differs: Differs = AS_TOLD,
        *,
        limits: HeatLimits = LIMITS,
        sensor: Sensor = good_sensor,
        writable: bool = True,
        governed: bool = True,
    ) -> None:
        self.told = told
        self.differs = differs
        self.governor = ThermalGovernor(told, limits) if governed else None
        self.sensor = sensor
        self.writable = writable
        self.now_s = 1000.0
        self.level = len(told.levels) - 1 if governed else 0
        self.duty = 1.0
        self.threads = 4
        self.effects: list[tuple[float, Effect]] = []
        self.ticks: list[Tick] = []
        idle_w = self._idle_w(LEAKAGE_AT_C) * differs.power
        self.rises = [stage.c_per_w * differs.resistance * idle_w for stage in told.stages]

    @property
    def temp_c(self) -> float:
        return self.differs.ambient_c + sum(self.rises)

    @property
    def cap_writes_s(self) -> list[float]:
        return [at_s for at_s, effect in self.effects if isinstance(effect, SetCaps)]

    def run(self, phase: Phase, seconds: float, *, waiting: int = 0) -> None:
        """`phase` for so long, with a look of the governor each second and one when it begins."""
        self._look(phase, 0.0, waiting)
        left_s = seconds
        while left_s > 1e-9:
            dt_s = min(1.0, left_s)
            self._heat(phase, dt_s)
            self.now_s += dt_s
            left_s -= dt_s
            self._look(phase, 1.0, waiting)

    def _idle_w(self, temp_c: float) -> float:
        return self.told.power.chip_idle_w + leakage_w(self.told.power, temp_c)

    def _heat(self, phase: Phase, dt_s: float) -> None:
        level, told = self.told.levels[self.level], self.told
        decode_w = next(one.watts for one in level.decode if one.threads == self.threads)
        work_w = {"idle": 0.0, "prefill": level.prefill_w, "decode": decode_w}
        work_w["mixed"] = (level.prefill_w + decode_w) / 2
        steps = max(1, round(dt_s / SUBSTEP_S))
        for _ in range(steps):
            watts = (self._idle_w(self.temp_c) + work_w[phase] * self.duty) * self.differs.power
            for number, stage in enumerate(told.stages):
                tau_s = stage.tau_s * self.differs.resistance * self.differs.capacity
                keep = math.exp(-dt_s / steps / tau_s)
                settled_c = stage.c_per_w * self.differs.resistance * watts
                self.rises[number] = self.rises[number] * keep + settled_c * (1 - keep)

    def _look(self, phase: Phase, share: float, waiting: int) -> None:
        read_c, age_s = self.sensor(self.temp_c, self.now_s)
        cap_khz = self.told.levels[self.level].caps_khz[POLICY] or OPPS_KHZ[-1]
        if self.governor is not None:
            sight = ThermalSight(
                temp_c=read_c,
                age_s=age_s,
                clusters=(
                    ClusterSight(name=POLICY, cpus=4, opps_khz=OPPS_KHZ, cap_khz=cap_khz, writable=self.writable),
                ),
                load=LoadSight(
                    phase=phase,
                    prefill_share=share * (phase == "prefill"),
                    decode_share=share * (phase == "decode"),
                    mixed_share=share * (phase == "mixed"),
                    waiting=waiting,
                ),
            )
            for effect in self.governor.apply(sight, self.now_s):
                self.effects.append((self.now_s, effect))
                if isinstance(effect, SetCaps) and self.writable:
                    caps = [level.caps_khz for level in self.told.levels]
                    self.level = caps.index(effect.caps_khz)
                elif isinstance(effect, SetDuty):
                    self.duty = effect.share
                elif isinstance(effect, SetThreads):
                    self.threads = effect.decode or 4
        state = self.governor.state if self.governor else ""
        self.ticks.append(
            Tick(self.now_s, self.temp_c, phase, self.told.levels[self.level].caps_khz[POLICY], self.duty, state)
        )
