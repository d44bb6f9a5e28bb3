"""The thermal governor on one board, in simulated time."""

from __future__ import annotations

import pytest
from hot_board import LIMITS, OPPS_KHZ, POLICY, Differs, HotBoard, prior
from msgspec.structs import replace

from magnitude.governor.thermal import ThermalGovernor, state_of
from magnitude.governor.thermal_terms import (
    Announce,
    ClusterSight,
    LoadSight,
    PreferSmaller,
    SetCaps,
    SetConcurrency,
    SetDuty,
    SetThreads,
    ThermalSight,
)

HOUR_S = 3600.0


def work_for(board: HotBoard, seconds: float, *, prefill_s: float = 6.0, decode_s: float = 12.0) -> None:
    until_s = board.now_s + seconds
    while board.now_s < until_s:
        board.run("prefill", prefill_s)
        board.run("decode", decode_s)


def sight(temp_c: float | None, **more: object) -> ThermalSight:
    cluster = ClusterSight(name=POLICY, cpus=4, opps_khz=OPPS_KHZ, cap_khz=OPPS_KHZ[-1])
    load = more.pop("load", LoadSight(phase="decode", decode_share=1.0))
    return ThermalSight(temp_c=temp_c, clusters=(cluster,), load=load, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("differs", [Differs(), Differs(power=1.2), Differs(resistance=0.85, ambient_c=35.0)])
def test_a_hot_board_settles_below_its_target_instead_of_sawing(differs: Differs) -> None:
    board = HotBoard(prior(), differs)
    work_for(board, 2 * HOUR_S)
    late = [tick for tick in board.ticks if tick.now_s > 1000 + HOUR_S]
    assert max(tick.temp_c for tick in board.ticks) < LIMITS.target_c + 0.5
    temps = [tick.temp_c for tick in late]
    assert max(temps) - min(temps) < 6.0  # what the phases themselves make of it
    assert {tick.state for tick in late} == {"warm"}


def test_a_board_that_stays_cool_is_left_alone_while_it_works() -> None:
    board = HotBoard(prior(watts=2.0), Differs(ambient_c=15.0))
    work_for(board, HOUR_S)
    assert not board.cap_writes_s or {tick.cap_khz for tick in board.ticks if tick.phase == "prefill"} == {None}
    assert {tick.state for tick in board.ticks} == {"cool"}


def test_answers_run_at_the_clock_where_memory_is_the_limit_once_phases_are_long() -> None:
    board = HotBoard(prior(watts=4.0), Differs(ambient_c=5.0))
    for _ in range(5):
        board.run("prefill", 40.0)
        board.run("decode", 120.0)
    late = board.ticks[len(board.ticks) // 2 :]
    answers = {tick.cap_khz for tick in late if tick.phase == "decode" and tick.now_s > 1400}
    assert None not in answers
    rates = {level.caps_khz[POLICY]: level.decode[0].rate for level in board.told.levels}
    assert min(rates[cap] for cap in answers) > 0.94 * rates[None]
    watts = {level.caps_khz[POLICY]: level.decode[0].watts for level in board.told.levels}
    assert max(watts[cap] for cap in answers) < 0.85 * watts[None]
    assert board.governor is not None
    assert board.governor.caps("prefill")[POLICY] is None


def test_an_idle_board_rests_at_once_and_has_its_full_clock_when_a_request_comes() -> None:
    board = HotBoard(prior(), Differs(ambient_c=15.0))
    board.run("idle", 60.0)
    rested = board.ticks[-1].cap_khz
    board.run("prefill", 1.0)
    assert rested == OPPS_KHZ[0]
    assert board.ticks[-1].cap_khz is None
    board.run("idle", 0.0)
    assert board.ticks[-1].cap_khz == OPPS_KHZ[0]


def test_every_request_finds_its_clock_however_often_they_come() -> None:
    board = HotBoard(prior(watts=2.0), Differs(ambient_c=10.0))
    for _ in range(200):
        board.run("idle", 1.5)
        board.run("prefill", 1.0)
        assert board.ticks[-1].cap_khz is None


def test_where_clocks_cannot_be_set_the_engine_pauses_instead() -> None:
    board = HotBoard(prior(), Differs(power=1.15), writable=False)
    work_for(board, HOUR_S)
    assert not board.cap_writes_s
    assert min(tick.duty for tick in board.ticks) < 1
    assert max(tick.temp_c for tick in board.ticks) < LIMITS.soft_c


def test_the_safety_net_holds_between_its_two_temperatures_whatever_the_model_says() -> None:
    governor = ThermalGovernor(prior(), LIMITS)
    governor.apply(sight(60.0), 0.0)
    effects = governor.apply(sight(LIMITS.down_c + 0.1), 1.0)
    assert Announce("hot", "cool", governor.reason) in effects
    assert any(isinstance(effect, SetCaps) and effect.caps_khz == {POLICY: OPPS_KHZ[0]} for effect in effects)
    governor.apply(sight(LIMITS.up_c + 0.1), 2.0)
    assert governor.state == "hot"
    effects = governor.apply(sight(LIMITS.up_c - 0.1), 3.0)
    assert governor.state != "hot"
    assert any(isinstance(effect, Announce) and effect.before == "hot" for effect in effects)


def test_what_the_firmware_says_of_heat_counts_more_than_the_sensor() -> None:
    governor = ThermalGovernor(prior(), LIMITS)
    governor.apply(sight(60.0, soft_limit=True), 0.0)
    assert governor.state == "hot"
    governor = ThermalGovernor(prior(), LIMITS)
    governor.apply(sight(60.0, throttled=True, soft_limit=False), 0.0)  # throttled for its supply
    assert governor.state == "cool"


def test_an_unknown_temperature_is_never_taken_for_cool() -> None:
    never = ThermalGovernor(prior(), LIMITS)
    effects = never.apply(sight(None, age_s=3.0), 0.0)
    assert never.state == "blind"
    assert any(isinstance(effect, SetCaps) and effect.caps_khz[POLICY] == OPPS_KHZ[0] for effect in effects)
    board = HotBoard(prior(), Differs(ambient_c=30.0))
    work_for(board, HOUR_S)
    board.sensor = lambda temp_c, now_s: (None, 10.0)
    work_for(board, HOUR_S)
    blind = [tick for tick in board.ticks if tick.now_s > 1010 + HOUR_S]
    assert {tick.state for tick in blind} == {"blind"}
    assert max(tick.temp_c for tick in blind) < LIMITS.target_c
    board.sensor = lambda temp_c, now_s: (temp_c, 0.1)
    work_for(board, 60.0)
    assert board.ticks[-1].state == "warm"


def test_a_sensor_that_says_the_same_whatever_the_chip_does_is_not_believed() -> None:
    board = HotBoard(prior(), Differs())
    work_for(board, 300.0)
    board.run("idle", 300.0)
    stuck_c = board.temp_c
    board.sensor = lambda temp_c, now_s: (stuck_c, 0.1)
    work_for(board, HOUR_S)
    assert board.ticks[-1].state == "blind"
    assert max(tick.temp_c for tick in board.ticks) < LIMITS.soft_c


def test_a_chip_that_keeps_its_temperature_is_not_taken_for_a_stuck_sensor() -> None:
    board = HotBoard(prior(watts=2.0), Differs(ambient_c=15.0))
    board.sensor = lambda temp_c, now_s: (float(round(temp_c)), 0.1)
    board.run("idle", HOUR_S)
    board.run("decode", HOUR_S)
    assert {tick.state for tick in board.ticks} == {"cool"}


def test_a_board_that_never_had_a_sensor_and_is_not_known_to_have_one_is_left_alone() -> None:
    governor = ThermalGovernor(prior(), replace(LIMITS, expects_sensor=False))
    effects = [effect for second in range(100) for effect in governor.apply(sight(None), float(second))]
    assert [effect for effect in effects if not isinstance(effect, SetThreads)] == []


def test_a_lower_limit_of_somebody_else_stays_and_a_lost_one_of_ours_is_set_again() -> None:
    governor = ThermalGovernor(prior(), LIMITS)
    governor.apply(sight(LIMITS.down_c + 0.2), 0.0)  # everything down

    def look(cap_khz: int, now_s: float) -> list[SetCaps]:
        cluster = ClusterSight(name=POLICY, cpus=4, opps_khz=OPPS_KHZ, cap_khz=cap_khz)
        shown = ThermalSight(temp_c=LIMITS.down_c, clusters=(cluster,), load=LoadSight(phase="decode"))
        return [effect for effect in governor.apply(shown, now_s) if isinstance(effect, SetCaps)]

    assert look(OPPS_KHZ[0], 5.0) == []
    assert look(1_000_000, 10.0) == []
    assert [effect.caps_khz for effect in look(OPPS_KHZ[-1], 20.0)] == [{POLICY: OPPS_KHZ[0]}]


@pytest.mark.parametrize("steps_down", [1, 2, 5])
def test_a_limit_of_somebody_else_where_ours_cannot_be_set_counts_as_what_it_is(steps_down: int) -> None:
    governor = ThermalGovernor(prior(), LIMITS)
    theirs_khz = OPPS_KHZ[-1 - steps_down]
    cluster = ClusterSight(name=POLICY, cpus=4, opps_khz=OPPS_KHZ, cap_khz=theirs_khz, writable=False)
    for second in range(20):
        governor.apply(ThermalSight(temp_c=50.0, clusters=(cluster,), load=LoadSight(phase="prefill")), float(second))
    assert governor.caps("prefill")[POLICY] == theirs_khz


@pytest.mark.parametrize("differs", [Differs(), Differs(power=1.2, ambient_c=20.0), Differs(0.85, 1.0, 1.0, 30.0)])
def test_it_learns_how_this_board_loses_its_heat(differs: Differs) -> None:
    board = HotBoard(prior(), differs)
    for _ in range(12):
        work_for(board, 300.0, prefill_s=60.0, decode_s=60.0)
        board.run("idle", 300.0)
    assert board.governor is not None
    estimate = board.governor.estimate
    told = sum(stage.c_per_w for stage in board.told.stages)
    assert estimate.c_per_w == pytest.approx(told * differs.resistance * differs.power, rel=0.15)


@pytest.mark.parametrize("capacity", [0.7, 1.0, 1.4])
def test_it_learns_how_fast_this_board_warms_up(capacity: float) -> None:
    board = HotBoard(prior(watts=4.0), Differs(capacity=capacity))
    for _ in range(12):
        board.run("prefill", 400.0)
        board.run("idle", 400.0)
    assert board.governor is not None
    slowest_s = board.told.stages[-1].tau_s
    assert board.governor.estimate.tau_s == pytest.approx(slowest_s * capacity, rel=0.2)


def test_a_chip_that_is_cool_again_has_its_full_clock_again() -> None:
    board = HotBoard(prior(), Differs(power=1.1, ambient_c=24.0))
    work_for(board, HOUR_S)
    assert board.ticks[-1].state in ("warm", "hot")
    board.run("idle", HOUR_S)
    board.run("prefill", 3.0)
    assert (board.ticks[-1].cap_khz, board.ticks[-1].duty) == (None, 1.0)


def test_fewer_requests_and_a_smaller_variant_are_asked_for_only_while_heat_costs_much() -> None:
    board = HotBoard(prior(watts=9.0), Differs(power=1.2, ambient_c=30.0))
    work_for(board, HOUR_S)
    asked = [effect for _, effect in board.effects if isinstance(effect, SetConcurrency | PreferSmaller)]
    assert SetConcurrency in map(type, asked)
    assert any(isinstance(effect, PreferSmaller) and effect.on for effect in asked)
    board.run("idle", HOUR_S)
    asked = [effect for _, effect in board.effects if isinstance(effect, SetConcurrency | PreferSmaller)]
    assert [effect.limit for effect in asked if isinstance(effect, SetConcurrency)][-1] is None
    assert [effect.on for effect in asked if isinstance(effect, PreferSmaller)][-1] is False


def test_answers_get_as_few_threads_as_read_memory_as_fast() -> None:
    board = HotBoard(prior(), Differs())
    work_for(board, 60.0)
    wishes = [effect for _, effect in board.effects if isinstance(effect, SetThreads)]
    assert [(wish.prefill, wish.decode) for wish in wishes][-1] == (4, 2)


def test_every_change_has_its_reason_with_figures() -> None:
    board = HotBoard(prior(), Differs(power=1.2))
    work_for(board, HOUR_S)
    effects = [effect for _, effect in board.effects]
    assert all(effect.reason for effect in effects)
    assert any("°C" in effect.reason for effect in effects if isinstance(effect, SetCaps))
    assert board.governor is not None
    shown = state_of(board.governor)
    assert shown.state == "warm"
    assert shown.caps_khz["prefill"] == board.governor.caps("prefill")
    assert shown.duty == board.ticks[-1].duty


def test_a_duty_is_never_zero_and_never_above_one() -> None:
    board = HotBoard(prior(watts=12.0), Differs(power=1.25, ambient_c=45.0))
    work_for(board, 600.0)
    shares = [effect.share for _, effect in board.effects if isinstance(effect, SetDuty)]
    assert shares
    assert all(0 < share <= 1 for share in shares)
