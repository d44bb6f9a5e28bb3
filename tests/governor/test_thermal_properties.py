"""What the thermal governor promises on any board, under any load, whatever its sensors do."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

from hot_board import HARD_C, LIMITS, OPPS_KHZ, POLICY, Differs, HotBoard, prior
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from magnitude.board.power_use import leakage_w
from magnitude.board.profile import ThermalStage
from magnitude.governor.heat_model import PEAK_TAU_S, TAU_SCALES
from magnitude.governor.operating_point import NOW_HORIZON_S
from magnitude.governor.thermal_prior import HeatPrior
from magnitude.governor.thermal_terms import SetCaps, SetDuty

PHASES = st.sampled_from(["idle", "prefill", "decode", "mixed"])
FAULTS = st.sampled_from(["lost", "stale", "noise", "spike", "low_spike", "stuck"])


class Fault(NamedTuple):
    kind: str
    from_s: float
    until_s: float


class FaultySensor:
    """Noise of a degree all the time; between the times of a fault, that."""

    def __init__(self, faults: list[Fault], seed: int) -> None:
        self.faults = faults
        self.random = random.Random(seed)
        self.stuck_c: dict[Fault, float] = {}

    def __call__(self, temp_c: float, now_s: float) -> tuple[float | None, float]:
        read_c = temp_c + self.random.uniform(-0.5, 0.5)
        for fault in self.faults:
            if not fault.from_s <= now_s - 1000.0 < fault.until_s:
                continue
            match fault.kind:
                case "lost":
                    return None, now_s - 1000.0 - fault.from_s
                case "stale":
                    return None, 30.0
                case "noise":
                    read_c += self.random.uniform(-2.0, 2.0)
                case "spike":
                    read_c += 60.0 * (self.random.random() < 0.05)
                case "stuck":
                    read_c = self.stuck_c.setdefault(fault, read_c)
                case "low_spike":
                    read_c -= 60.0 * (self.random.random() < 0.05)
        return read_c, 0.1


@st.composite
def boards(draw: st.DrawFn) -> tuple[HeatPrior, Differs]:
    first = draw(st.floats(0.3, 3.0))
    stages = [
        ThermalStage(c_per_w=first, tau_s=draw(st.floats(1.0, 5.0))),
        ThermalStage(c_per_w=draw(st.floats(0.5, 4.0)), tau_s=draw(st.floats(8.0, 40.0))),
        ThermalStage(c_per_w=draw(st.floats(2.0, 8.0)), tau_s=draw(st.floats(60.0, 200.0))),
    ]
    count = draw(st.integers(2, len(OPPS_KHZ)))
    told = prior(OPPS_KHZ[-count:], watts=draw(st.floats(2.0, 12.0)), stages=stages)
    factor = st.floats(0.75, 1.25)
    differs = Differs(draw(factor), draw(factor), draw(factor), draw(st.floats(-10.0, 45.0)))
    return told, differs


@st.composite
def courses(draw: st.DrawFn) -> list[tuple[str, float]]:
    return draw(st.lists(st.tuples(PHASES, st.floats(0.5, 90.0)), min_size=3, max_size=12))


@st.composite
def faults(draw: st.DrawFn) -> list[Fault]:
    found = []
    for kind in draw(st.lists(FAULTS, max_size=3)):
        from_s = draw(st.floats(0.0, 300.0))
        found.append(Fault(kind, from_s, from_s + draw(st.floats(1.0, 200.0))))
    return found


def told_of(count: int, watts: float, *stages: tuple[float, float]) -> HeatPrior:
    """A board of so many clocks, by °C per watt and seconds of its stages."""
    return prior(OPPS_KHZ[-count:], watts=watts, stages=[ThermalStage(c_per_w=c, tau_s=tau_s) for c, tau_s in stages])


# A sensor that is stuck, with noise around its figure: from the start, ...
NEW_AND_STUCK = (told_of(2, 9.0, (2.0, 1.0), (1.0, 8.0), (6.0, 60.0)), Differs(ambient_c=20.0))
STUCK_FROM_THE_START = [Fault("stuck", 0.0, 23.0), Fault("lost", 0.0, 1.0), Fault("noise", 0.0, 19.0)]
# ... until it has taught that the air is at -24 degrees, ...
COLD_AND_STUCK = (told_of(2, 10.0, (2.0, 1.0), (2.0, 8.0), (2.0, 60.0)), Differs(power=1.25, ambient_c=1.0))
STUCK_UNTIL_THE_END = [Fault("stuck", 0.0, 42.0), Fault("lost", 0.0, 1.0), Fault("noise", 0.0, 13.0)]
# ... while a prompt is read, ...
BUSY_AND_STUCK = (told_of(3, 12.0, (1.6, 1.0), (4.0, 30.0), (2.0, 140.0)), Differs(1.18, 0.95, 0.8, -10.0))
STUCK_IN_A_PROMPT = [Fault("stuck", 97.0, 192.0), Fault("noise", 5.0, 205.0)]
# ... after the very same figure for a while, ...
LATER_NOISY = (told_of(10, 12.0, (2.8, 3.1), (4.0, 25.0), (4.7, 95.0)), Differs(1.25, 0.83, 0.93, -3.6))
STUCK_THEN_NOISY = [Fault("stuck", 36.0, 224.0), Fault("noise", 80.0, 240.0)]
# ... and with pauses of the engine that make the rise small again.
SAWING = (told_of(5, 2.0, (3.0, 1.3), (4.0, 8.0), (2.0, 100.0)), Differs(1.24, 0.75, 0.75, 45.0))
STUCK_WHILE_IDLE = [Fault("stuck", 124.0, 324.0), Fault("spike", 5.0, 138.0), Fault("noise", 215.0, 415.0)]


@settings(max_examples=400, deadline=None)
@example(NEW_AND_STUCK, [("idle", 2.0), ("prefill", 21.0)], STUCK_FROM_THE_START, 0, False)
@example(COLD_AND_STUCK, [("idle", 1.0), ("prefill", 41.0)], STUCK_UNTIL_THE_END, 0, False)
@example(BUSY_AND_STUCK, [("idle", 65.0), ("prefill", 150.0)], STUCK_IN_A_PROMPT, 419, False)
@example(LATER_NOISY, [("mixed", 54.0), ("decode", 27.0), ("prefill", 85.0)], STUCK_THEN_NOISY, 920, False)
@example(SAWING, [("prefill", 110.0), ("idle", 82.0), ("prefill", 200.0)], STUCK_WHILE_IDLE, 132, False)
@given(boards(), courses(), faults(), st.integers(0, 1000), st.booleans())
def test_no_chip_passes_its_hard_limit_that_full_throttling_would_have_kept_below_it(
    board: tuple[HeatPrior, Differs], course: list, trouble: list[Fault], seed: int, writable: bool
) -> None:
    told, differs = board
    governed = HotBoard(told, differs, sensor=FaultySensor(trouble, seed), writable=writable)
    throttled = HotBoard(told, differs, governed=False)
    for phase, seconds in course:
        governed.run(phase, seconds)
        throttled.run(phase, seconds)
    hottest_c = max(tick.temp_c for tick in governed.ticks)
    assert hottest_c <= max(HARD_C, max(tick.temp_c for tick in throttled.ticks) + 0.01)
    for _, effect in governed.effects:
        if isinstance(effect, SetCaps):
            assert effect.caps_khz[POLICY] is None or effect.caps_khz[POLICY] in OPPS_KHZ
        elif isinstance(effect, SetDuty):
            assert 0 < effect.share <= 1
    writes_s = governed.cap_writes_s
    assert all(later - earlier >= 60 for earlier, later in zip(writes_s, writes_s[6:], strict=False))
    assert writable or not writes_s


def rested_c(told: HeatPrior, differs: Differs) -> float:
    """Where the board settles while it does nothing."""
    resistance = sum(stage.c_per_w for stage in told.stages) * differs.resistance
    temp_c = differs.ambient_c
    for _ in range(50):
        watts = told.power.chip_idle_w + leakage_w(told.power, temp_c)
        temp_c = differs.ambient_c + resistance * watts * differs.power
    return temp_c


def prompt_rise_c(told: HeatPrior, differs: Differs) -> float:
    """How much warmer the governor may take the board to be after a prompt of ten seconds: by the model with the
    fastest stages, and with what it is not sure of before it has learned, a quarter and a little."""
    factor = max(1.3, differs.resistance * differs.power)
    c_per_w = 0.0
    for stage in told.stages:
        tau_s = stage.tau_s * TAU_SCALES[0]
        c_per_w += stage.c_per_w * (1 - math.exp(-NOW_HORIZON_S / tau_s) if tau_s >= PEAK_TAU_S else 1.0)
    return factor * c_per_w * told.levels[-1].prefill_w


@settings(max_examples=60, deadline=None)
@given(boards(), courses(), faults(), st.integers(0, 1000))
def test_every_board_has_its_full_clock_again_once_it_is_cool_and_its_sensor_answers(
    board: tuple[HeatPrior, Differs], course: list, trouble: list[Fault], seed: int
) -> None:
    told, differs = board
    cold = differs._replace(ambient_c=-30.0)
    cool_c = rested_c(told, cold)
    assume(cool_c < 15.0)
    # Where ten seconds of a prompt take such a chip to its limit, there is no full clock to have.
    assume(cool_c + prompt_rise_c(told, differs) < LIMITS.up_c)
    governed = HotBoard(told, differs, sensor=FaultySensor(trouble, seed))
    for phase, seconds in course:
        governed.run(phase, seconds)
    # It stands idle in a cold store until it has cooled, and until the last fault is over.
    governed.differs = cold
    governed.run("idle", 1500.0)
    assert governed.temp_c < cool_c + 1.0
    governed.run("prefill", 1.0)
    assert (governed.ticks[-1].cap_khz, governed.ticks[-1].duty) == (None, 1.0)
