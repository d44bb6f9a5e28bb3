"""The watch over a simulated board: what it sees, decides and writes, and what it does when something fails."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import msgspec
import pytest
from watched_board import WatchedBoard

from magnitude.board.snapshot import Power, Snapshot
from magnitude.config.power import PowerSettings
from magnitude.config.thermal import ThermalSettings
from magnitude.errors import ConfigError
from magnitude.governor.thermal_terms import LoadSight
from magnitude.supervise.board_watch import HELD_LOW_DUTY, LOST_S, RENEW_S, RETRY_S, STUCK_S

FULL_KHZ = 2_400_000
LOWEST_KHZ = 1_500_000


def test_a_chip_under_lasting_load_is_kept_below_the_firmwares_limit_by_its_clock(
    tmp_path: Path,
) -> None:
    board = WatchedBoard(tmp_path, start_c=70.0)
    board.busy()
    board.pass_s(600)
    assert board.cap_khz() < FULL_KHZ
    assert board.board.temp_c < board.profile.trips.soft_c
    assert board.watch.thermal_state().caps_khz == {"policy0": board.cap_khz()}
    assert any(text.startswith("clocks: policy0") for text in board.decided("caps"))
    assert board.watch.throttled


def test_where_clocks_cannot_be_written_the_engine_pauses_instead(tmp_path: Path) -> None:
    def refuse(path: Path, khz: int) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    board = WatchedBoard(tmp_path, start_c=75.0, write=refuse)
    board.busy()
    board.pass_s(600)
    assert board.cap_khz() == FULL_KHZ
    assert board.duty < 1.0
    assert board.board.temp_c < board.profile.trips.soft_c
    (clock,) = board.watch.board_state().clocks
    assert "Permission denied" in clock.refusal
    assert len(board.decided("refused")) == 1  # said once, tried again all the time
    assert board.caps.renewals >= 300 // RENEW_S


def test_when_a_refused_limit_can_be_written_again_the_clock_takes_over_from_the_pauses(tmp_path: Path) -> None:
    refuses = True

    def write(path: Path, khz: int) -> None:
        if refuses:
            raise OSError(errno.EBUSY, "busy")
        path.write_text(f"{khz}\n")

    board = WatchedBoard(tmp_path, start_c=75.0, write=write)
    board.busy()
    board.pass_s(120)
    assert board.duty < 1.0
    refuses = False
    paused = board.duty
    board.pass_s(300)
    assert board.duty > paused
    assert board.cap_khz() < FULL_KHZ
    assert not board.watch.board_state().clocks[0].refusal


def test_policies_that_may_not_be_written_are_asked_for_once(tmp_path: Path) -> None:
    board = WatchedBoard(tmp_path)

    def locked(snapshot: Snapshot) -> Snapshot:
        clocks = tuple(msgspec.structs.replace(clock, writable=False) for clock in snapshot.clocks)
        return msgspec.structs.replace(snapshot, clocks=clocks)

    board.eyes.change = locked
    board.pass_s(30)
    assert board.asked == [["policy0"]]
    assert board.watch.throttled is False


def test_a_stop_gives_the_clocks_back_and_nothing_is_written_after_it(tmp_path: Path) -> None:
    board = WatchedBoard(tmp_path, start_c=80.0)
    board.busy()
    board.pass_s(60)
    assert board.cap_khz() < FULL_KHZ
    asyncio.run(board.watch.close())
    assert board.cap_khz() == FULL_KHZ
    board.pass_s(30)
    assert board.cap_khz() == FULL_KHZ


def test_switched_off_nothing_is_limited_and_what_was_is_given_back(tmp_path: Path) -> None:
    off = ThermalSettings(enabled=False)
    board = WatchedBoard(tmp_path / "one", start_c=80.0, thermal=off)
    board.busy()
    board.pass_s(60)
    assert (board.cap_khz(), board.duty, board.caps.sent) == (FULL_KHZ, 1.0, [])
    assert board.watch.temp_c == board.board.snapshot().hottest_c  # watched all the same

    board = WatchedBoard(tmp_path / "two", start_c=80.0)
    board.busy()
    board.pass_s(60)
    assert board.cap_khz() < FULL_KHZ
    board.watch.tune(off, PowerSettings())
    board.watch.look()
    assert (board.cap_khz(), board.duty, board.limit) == (FULL_KHZ, 1.0, None)
    board.watch.tune(ThermalSettings(), PowerSettings())
    board.pass_s(60)
    assert board.cap_khz() < FULL_KHZ


def on_battery(percent: float) -> Any:
    def change(snapshot: Snapshot) -> Snapshot:
        power = Power(on_mains=False, battery_percent=percent, discharging=True)
        return msgspec.structs.replace(snapshot, power=power)

    return change


def test_a_battery_that_runs_low_limits_clock_and_generations_on_a_cool_board(tmp_path: Path) -> None:
    board = WatchedBoard(tmp_path)
    board.busy()
    board.pass_s(2)
    board.eyes.change = on_battery(20.0)
    board.pass_s(2)
    assert (board.cap_khz(), board.limit) == (1_600_000, 2)
    assert board.decided("tier") == ["full to saving"]
    assert board.watch.power_state().battery_percent == 20.0
    board.eyes.change = lambda snapshot: snapshot
    board.pass_s(700)
    board.busy("decode")
    board.pass_s(2)
    assert board.limit is None


def test_of_the_limits_of_heat_and_supply_the_lower_one_holds(tmp_path: Path) -> None:
    board = WatchedBoard(tmp_path, start_c=84.0)
    board.eyes.change = on_battery(20.0)
    board.busy()
    board.pass_s(3)
    assert board.cap_khz() == LOWEST_KHZ  # heat asks for less than the supply
    assert board.watch.thermal_state().wanted.caps_khz["policy0"] == LOWEST_KHZ
    board.watch.tune(ThermalSettings(enabled=False), PowerSettings())
    board.watch.look()
    assert board.cap_khz() == 1_600_000


def test_clocks_of_rest_are_told_apart_from_those_of_work(tmp_path: Path) -> None:
    board = WatchedBoard(tmp_path)
    board.pass_s(30)
    resting = board.watch.in_force()
    assert resting.asked_khz == {"policy0": LOWEST_KHZ}
    assert resting.working_khz == {"policy0": None}
    assert (resting.heat, resting.tier, resting.smaller) == ("cool", "full", False)


def test_what_heat_and_supply_hold_the_board_to_is_told(tmp_path: Path) -> None:
    board = WatchedBoard(tmp_path, start_c=84.0)
    looks: list[int] = []
    board.watch.on_look = lambda: looks.append(1)
    board.eyes.change = on_battery(20.0)
    board.busy()
    board.pass_s(3)
    now = board.watch.in_force()
    assert (now.tier, now.smaller) == ("saving", True)
    assert now.working_khz == {"policy0": LOWEST_KHZ}
    assert board.watch.snapshot is not None
    assert len(looks) == 3


def test_whoever_fails_after_a_look_does_not_end_the_looking(tmp_path: Path) -> None:
    board = WatchedBoard(tmp_path)
    looks: list[int] = []

    def fails() -> None:
        looks.append(1)
        raise ZeroDivisionError

    board.watch.on_look = fails
    board.pass_s(3)
    assert len(looks) == 3


def test_a_supply_that_is_not_to_be_governed_limits_nothing(tmp_path: Path) -> None:
    board = WatchedBoard(tmp_path, power=PowerSettings(enabled=False))
    board.eyes.change = on_battery(5.0)
    board.pass_s(3)
    assert board.limits == []
    assert not board.watch.power_state().enabled


def test_a_board_that_is_not_seen_any_more_is_taken_for_warm(tmp_path: Path) -> None:
    board = WatchedBoard(tmp_path, start_c=70.0)
    board.busy()
    board.pass_s(30)
    board.eyes.stuck = True
    board.pass_s(600)
    state = board.watch.thermal_state()
    assert state.governor is not None
    assert state.governor.state == "blind"
    assert board.cap_khz() < FULL_KHZ
    assert board.watch.temp_c is None
    assert board.decided("fault") == ["the board is not seen any more"]
    assert board.board.temp_c < board.profile.trips.soft_c
    board.eyes.stuck = False
    board.pass_s(2)
    assert "the board is seen again" in board.decided("state")


def test_a_board_that_was_never_seen_is_held_low_after_a_while(tmp_path: Path) -> None:
    board = WatchedBoard(tmp_path)
    board.eyes.stuck = True
    board.busy()
    board.pass_s(2)
    assert board.duties == []
    board.pass_s(2 * LOST_S)
    assert board.duty < 1.0


def test_a_failure_of_the_watch_holds_the_board_low_until_it_works_again(tmp_path: Path) -> None:
    board = WatchedBoard(tmp_path)
    board.busy()
    board.pass_s(5)
    fails = True
    works = board._load

    def load() -> LoadSight:
        if fails:
            raise RuntimeError("broken")
        return works()

    board.watch._load = load
    board.pass_s(1)
    assert (board.cap_khz(), board.duty, board.limit) == (LOWEST_KHZ, HELD_LOW_DUTY, 1)
    assert board.watch.thermal_state().fault == "RuntimeError: broken"
    board.pass_s(5 * RETRY_S)
    assert 4 <= board.watch.thermal_state().faults <= 6  # neither given up nor said every second
    fails = False
    board.pass_s(RETRY_S + 1)
    assert (board.cap_khz(), board.duty, board.limit) == (FULL_KHZ, 1.0, None)
    assert board.watch.thermal_state().fault == ""


def test_while_a_driver_does_not_answer_the_engine_pauses_instead(tmp_path: Path) -> None:
    board = WatchedBoard(tmp_path, start_c=40.0)
    board.busy()
    board.pass_s(1)
    assert (board.cap_khz(), board.duty) == (FULL_KHZ, 1.0)
    board.caps.busy = STUCK_S + 1
    board.pass_s(300)
    assert board.cap_khz() == FULL_KHZ
    assert board.duty < 1.0
    assert board.board.temp_c < board.profile.trips.soft_c


def test_temperatures_that_do_not_fit_the_board_are_refused_and_change_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="firmware acts at 80"):
        WatchedBoard(tmp_path / "one", thermal=ThermalSettings(target_c=90.0, down_c=95.0))
    board = WatchedBoard(tmp_path / "two")
    before = board.watch.thermal_state().limits
    with pytest.raises(ConfigError):
        board.watch.tune(ThermalSettings(up_c=100.0), PowerSettings())
    assert board.watch.thermal_state().limits == before
    board.watch.tune(ThermalSettings(target_c=65.0, up_c=60.0), PowerSettings())
    limits = board.watch.thermal_state().limits
    assert limits is not None
    assert (limits.target_c, limits.up_c) == (65.0, 60.0)


def test_a_phase_that_begins_and_a_chip_that_is_too_hot_are_looked_at_at_once(tmp_path: Path) -> None:
    board = WatchedBoard(tmp_path)
    looks = 0
    works = board._load

    def load() -> LoadSight:
        nonlocal looks
        looks += 1
        return works()

    board.watch._load = load
    # In a time that stands still no look is due by itself for longer than this test may take.
    board.watch._speed = 1e-3

    async def until(wanted: int) -> None:
        while looks < wanted:
            await asyncio.sleep(0.01)

    async def main() -> None:
        running = asyncio.create_task(board.watch.run())
        await asyncio.wait_for(until(1), 20)
        await asyncio.sleep(0.2)
        seen = looks
        board.watch.phase_changed()
        await asyncio.wait_for(until(seen + 1), 20)
        assert board.eyes.on_snapshot is not None
        await asyncio.sleep(0.2)
        seen = looks
        hot = msgspec.structs.replace(board.board.snapshot(), hottest_c=99.0)
        await asyncio.to_thread(board.eyes.on_snapshot, hot)
        await asyncio.wait_for(until(seen + 1), 20)
        await board.watch.close()
        running.cancel()

    asyncio.run(main())
