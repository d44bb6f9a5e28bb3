from __future__ import annotations

import itertools
from typing import Any

import pytest

from magnitude.board.snapshot import Firmware, FirmwareFlags, Power
from magnitude.governor.power import PowerGovernor, PowerRules, SetTier, Tier, cap_khz, limits_of, wrong_percents
from magnitude.governor.power_state import power_state

RULES = PowerRules()
MAINS = Power(on_mains=True, discharging=False)
FINE = Firmware(now=FirmwareFlags(), since_boot=FirmwareFlags())
UNKNOWN = Firmware()


def flags(value: int) -> FirmwareFlags:
    """The four low bits of what a Raspberry Pi's firmware says, as the sampler reads them."""
    return FirmwareFlags(
        under_voltage=bool(value & 1),
        clock_capped=bool(value & 2),
        throttled=bool(value & 4),
        soft_limit=bool(value & 8),
    )


def throttled(value: int) -> Firmware:
    return Firmware(now=flags(value), since_boot=flags(value >> 16))


def battery(percent: float | None, **facts: Any) -> Power:
    return Power(**{"on_mains": False, "discharging": True, "battery_percent": percent, **facts})


class Board:
    """Looks once a second."""

    def __init__(self, rules: PowerRules = RULES) -> None:
        self.governor = PowerGovernor(rules)
        self.now_s = 0.0

    def runs(self, power: Power = MAINS, firmware: Firmware = FINE, seconds: int = 1) -> Tier:
        for _ in range(seconds):
            self.now_s += 1
            self.governor.apply(power, firmware, self.now_s)
        return self.governor.tier


@pytest.mark.parametrize(
    ("power", "tier"),
    [
        (Power(), "full"),
        (MAINS, "full"),
        (Power(on_mains=True), "full"),
        (Power(on_mains=True, battery_percent=3), "full"),
        (Power(on_mains=True, discharging=True), "full"),
        (Power(on_mains=False, discharging=False, battery_percent=3), "full"),
        (battery(31), "full"),
        (battery(30), "saving"),
        (battery(16), "saving"),
        (battery(15), "least"),
        (battery(0), "least"),
        (battery(None), "saving"),
        (Power(on_mains=False), "saving"),
        (Power(discharging=True), "saving"),
        (Power(battery_percent=10), "least"),
        (Power(on_mains=True, discharging=True, battery_percent=20), "saving"),
    ],
)
def test_the_supply_alone_chooses_the_tier(power: Power, tier: Tier) -> None:
    for firmware in (FINE, UNKNOWN):
        assert Board().runs(power, firmware) == tier


@pytest.mark.parametrize(
    ("firmware", "tier"),
    [
        (throttled(0x0), "full"),
        (throttled(0x50000), "full"),
        (throttled(0xE0000), "full"),
        (throttled(0x80008), "full"),
        (throttled(0x50005), "saving"),
        (UNKNOWN, "full"),
    ],
)
def test_only_under_voltage_of_this_moment_counts(firmware: Firmware, tier: Tier) -> None:
    assert Board().runs(MAINS, firmware) == tier


def test_a_battery_is_given_back_a_level_only_well_above_it() -> None:
    board = Board()
    assert board.runs(battery(15)) == "least"
    assert board.runs(battery(24), seconds=1000) == "least"
    assert board.runs(battery(25), seconds=61) == "saving"
    assert board.runs(battery(39), seconds=1000) == "saving"
    assert board.runs(battery(40), seconds=61) == "full"


def test_a_battery_that_is_unplugged_between_the_levels_runs_at_full() -> None:
    board = Board()
    board.runs(MAINS, seconds=10)
    assert board.runs(battery(35)) == "full"


def test_back_on_mains_the_tiers_come_back_one_by_one() -> None:
    board = Board()
    board.runs(battery(10))
    assert board.runs(MAINS, seconds=60) == "least"
    assert board.runs(MAINS) == "saving"
    assert board.runs(MAINS, seconds=59) == "saving"
    assert board.runs(MAINS) == "full"
    assert [change.tier for _, change in board.governor.changes] == ["least", "saving", "full"]


def test_a_plug_that_wobbles_changes_nothing_after_the_first_time() -> None:
    board = Board()
    for _ in range(100):
        board.runs(battery(20), seconds=3)
        board.runs(MAINS, seconds=55)
    assert board.governor.changes_total == 1
    assert board.governor.tier == "saving"


def test_a_gauge_that_falls_silent_is_believed_for_a_while() -> None:
    board = Board()
    board.runs(battery(20))
    assert board.runs(Power(), seconds=600) == "saving"
    assert board.runs(Power(), seconds=61) == "full"


def test_a_level_that_is_not_told_any_more_leaves_the_tier_as_it_is() -> None:
    board = Board()
    board.runs(battery(10))
    assert board.runs(battery(None), seconds=1000) == "least"


def test_under_voltage_that_saving_does_not_end_asks_for_the_least() -> None:
    board = Board()
    assert board.runs(firmware=throttled(0x10001), seconds=30) == "saving"
    assert board.runs(firmware=throttled(0x10001)) == "least"
    assert board.runs(firmware=throttled(0x10000), seconds=119) == "least"
    assert board.runs(firmware=throttled(0x10000), seconds=2) == "saving"
    assert board.runs(firmware=throttled(0x10000), seconds=61) == "full"


def test_under_voltage_that_comes_and_goes_with_the_load_counts_as_one() -> None:
    board = Board()
    for _ in range(20):
        board.runs(firmware=throttled(0x10001))
        board.runs(firmware=throttled(0x10000))
    assert board.governor.tier == "least"


def test_a_supply_that_gives_way_at_full_clock_is_tried_less_and_less_often() -> None:
    board, lows = Board(), []
    for _ in range(14400):
        full = board.governor.tier == "full"
        board.runs(firmware=throttled(0x10001 if full else 0x10000))
        if full:
            lows.append(board.now_s)
    waits = [after - before for before, after in itertools.pairwise(lows)]
    assert waits[0] < waits[1] < waits[2]
    assert max(waits) <= RULES.under_voltage_calm_most_s + 10
    assert waits[-1] >= RULES.under_voltage_calm_most_s


def test_a_supply_that_was_replaced_is_trusted_again() -> None:
    board = Board()
    for _ in range(4):
        board.runs(firmware=throttled(0x10001))
        while board.governor.tier != "full":
            board.runs(firmware=throttled(0x10000))
    board.runs(seconds=7200)
    board.runs(firmware=throttled(0x10001))
    assert board.runs(seconds=int(RULES.under_voltage_calm_s) + 1) == "full"


def test_firmware_that_cannot_be_asked_any_more_gives_nothing_back_at_first() -> None:
    board = Board()
    board.runs(firmware=throttled(0x1))
    assert board.runs(firmware=UNKNOWN, seconds=599) == "saving"
    assert board.runs(firmware=UNKNOWN, seconds=100) == "full"


def test_both_reasons_are_told_apart() -> None:
    board = Board()
    board.runs(battery(20))
    assert board.governor.reason == "battery at 20 %"
    board.runs(battery(20), throttled(0x1), seconds=40)
    assert "voltage has been too low for 30 s" in board.governor.reason
    assert board.governor.tier == "least"


def test_a_change_says_what_it_was_before() -> None:
    assert PowerGovernor().apply(battery(5), FINE, 1.0) == [SetTier("least", "full", "battery at 5 %")]


def test_a_clock_that_is_set_back_does_not_shorten_the_wait() -> None:
    board = Board()
    board.runs(battery(20), seconds=100)
    board.now_s = 0.0
    assert board.runs(MAINS, seconds=99) == "saving"


def test_each_tier_allows_less_than_the_one_before() -> None:
    full, saving, least = limits_of("full"), limits_of("saving"), limits_of("least")
    assert full.clock_share == 1.0
    assert full.concurrent is None
    assert not full.prefer_smaller
    assert full.clock_share > saving.clock_share > least.clock_share > 0
    assert saving.concurrent is not None
    assert least.concurrent == 1 < saving.concurrent
    assert saving.prefer_smaller
    assert least.early_exit
    assert least.input_scale < saving.input_scale


def test_a_cap_is_a_clock_that_the_hardware_has() -> None:
    pi5 = tuple(range(1_500_000, 2_400_001, 100_000))
    assert cap_khz(pi5, 2_400_000, 1.0) is None
    assert cap_khz(pi5, 2_400_000, 0.7) == 1_600_000
    assert cap_khz(pi5, 2_400_000, 0.5) == 1_500_000
    assert cap_khz((), 2_000_000, 0.7) == 1_400_000
    assert cap_khz((), None, 0.7) is None


def test_levels_in_the_wrong_order_are_named() -> None:
    assert wrong_percents(30, 15) is None
    assert "30" in (wrong_percents(15, 30) or "")


def test_what_is_shown_names_the_last_changes_and_the_history() -> None:
    board = Board()
    assert power_state(board.governor, Power(), UNKNOWN, 0.0).since_s is None
    board.runs(battery(10))
    board.runs(MAINS, throttled(0x50000), seconds=70)
    state = power_state(board.governor, MAINS, throttled(0x50000), board.now_s)
    assert (state.tier, state.changes_total) == ("saving", 2)
    assert [(change.tier, change.ago_s) for change in state.last_changes] == [("saving", 9.0), ("least", 70.0)]
    assert (state.under_voltage, state.under_voltage_since_boot) == (False, True)
    assert state.limits == limits_of("saving")
    assert power_state(board.governor, MAINS, UNKNOWN, board.now_s).under_voltage is None


def test_new_rules_count_from_the_next_look_on() -> None:
    board = Board()
    assert board.runs(battery(40)) == "full"
    board.governor.rules = PowerRules(battery_saving_percent=50)
    assert board.runs(battery(40)) == "saving"
