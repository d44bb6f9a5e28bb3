"""The board as the strategy loops see it."""

from __future__ import annotations

import msgspec

from magnitude.board.cpu import EngineCpus
from magnitude.board.snapshot import ClockPolicy, Snapshot
from magnitude.governor.in_force import InForce
from magnitude.governor.memory_ladder import Step
from magnitude.governor.wanted import Wanted
from magnitude.policy.terms import BoardSeen
from magnitude.schedule.strategy_board import BoardSight

CPUS = EngineCpus(cores=(4, 5, 0, 1), big=2, usable=3)
CLOCK = ClockPolicy(name="policy4", cpus=(4, 5), max_khz=2_000_000, cap_khz=1_000_000)
SNAPSHOT = Snapshot(at_s=1.0, engine=CPUS, clocks=(CLOCK,))


def seen(
    snapshot: Snapshot | None = SNAPSHOT,
    in_force: InForce | None = None,
    step: Step = "normal",
    cpus: EngineCpus | None = None,
    bandwidth_use: float | None = None,
) -> BoardSeen | None:
    sight = BoardSight(
        snapshot=lambda: snapshot,
        in_force=lambda: in_force or InForce(),
        memory_step=lambda: step,
        cpus=cpus,
        bandwidth_use=lambda: bandwidth_use,
    )
    return sight()


def test_cores_quota_and_clocks_are_those_of_the_engine() -> None:
    assert seen() == BoardSeen(cores=(4, 5, 0, 1), usable=3, big=2, clock_share=0.5)


def test_wishes_of_heat_and_supply_are_passed_on() -> None:
    wanted = Wanted(prefill_threads=4, decode_threads=2)
    now = InForce(heat="hot", tier="saving", wanted=wanted, smaller=True)
    board = seen(in_force=now)
    assert board is not None
    assert (board.heat, board.supply, board.smaller) == ("hot", "saving", True)
    assert (board.prefill_threads, board.decode_threads) == (4, 2)


def test_each_step_against_a_shortage_counts_as_short_memory() -> None:
    board = seen(step="trim")
    assert board is not None
    assert board.memory == "short"


def test_the_use_of_the_memorys_bandwidth_is_told_as_far_as_it_is_known() -> None:
    assert seen(bandwidth_use=0.8) == BoardSeen(
        cores=(4, 5, 0, 1), usable=3, big=2, clock_share=0.5, bandwidth_use=0.8
    )


def test_a_board_that_is_not_seen_is_not_guessed() -> None:
    assert seen(None) is None
    assert seen(msgspec.structs.replace(SNAPSHOT, engine=EngineCpus())) is None


def test_the_clocks_of_a_simulated_board_are_not_those_of_the_cpus_that_compute() -> None:
    mine = EngineCpus(cores=(0, 1), big=2, usable=2)
    assert seen(cpus=mine) == BoardSeen(cores=(0, 1), usable=2, big=2)
