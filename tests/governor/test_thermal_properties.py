"""What the thermal governor promises on any board, under any load, whatever its sensors do."""

from __future__ import annotations

import random
from typing import NamedTuple

from hot_board import HARD_C, LIMITS, OPPS_KHZ, POLICY, Differs, HotBoard, prior
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from magnitude.board.profile import ThermalStage
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


@settings(max_examples=1200, deadline=None)
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


@settings(max_examples=300, deadline=None)
@given(boards(), courses(), faults(), st.integers(0, 1000))
def test_every_board_has_its_full_clock_again_once_it_is_cool_and_its_sensor_answers(
    board: tuple[HeatPrior, Differs], course: list, trouble: list[Fault], seed: int
) -> None:
    told, differs = board
    governed = HotBoard(told, differs, sensor=FaultySensor(trouble, seed))
    for phase, seconds in course:
        governed.run(phase, seconds)
    # It stands idle in a cold store until it has cooled, and until the last fault is over.
    governed.differs = differs._replace(ambient_c=-30.0)
    governed.run("idle", 2400.0)
    assume(governed.temp_c < 15.0)
    # Where a prompt alone would take such a chip to its limit within seconds, there is no full clock to have.
    quick_c_per_w = sum(stage.c_per_w for stage in told.stages if stage.tau_s < 60.0)
    assume(governed.temp_c + 1.3 * quick_c_per_w * told.levels[-1].prefill_w < LIMITS.up_c)
    governed.run("prefill", 1.0)
    assert (governed.ticks[-1].cap_khz, governed.ticks[-1].duty) == (None, 1.0)
