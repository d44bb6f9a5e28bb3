from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude.board.snapshot import Firmware, FirmwareFlags, Power
from magnitude.governor.power import TIERS, PowerGovernor, PowerRules, SetTier

RULES = PowerRules()
told = st.one_of(st.none(), st.booleans())
percents = st.one_of(st.none(), st.floats(0, 100))
supplies = st.builds(Power, on_mains=told, battery_percent=percents, discharging=told)
words = st.builds(FirmwareFlags, under_voltage=st.booleans(), soft_limit=st.booleans(), throttled=st.booleans())
firmwares = st.builds(Firmware, now=st.one_of(st.none(), words), since_boot=st.one_of(st.none(), words))
# Most looks come every second or so; some come late, and the clock may be set back.
times = st.one_of(st.floats(0, 5), st.floats(-10, 200))
looks = st.tuples(supplies, firmwares, times)
courses = st.lists(looks, max_size=150)

Look = tuple[Power, Firmware, float]


def run(governor: PowerGovernor, course: list[Look], now_s: float = 0.0) -> tuple[list[tuple[float, SetTier]], float]:
    changes = []
    latest_s = now_s
    for power, firmware, passed_s in course:
        now_s += passed_s
        latest_s = max(latest_s, now_s)
        changes += [(latest_s, change) for change in governor.apply(power, firmware, now_s)]
    return changes, latest_s


@given(courses, supplies, firmwares)
@settings(max_examples=300)
def test_the_tier_is_never_above_what_the_facts_of_the_moment_allow(
    course: list[Look], power: Power, firmware: Firmware
) -> None:
    governor = PowerGovernor()
    _, now_s = run(governor, course)
    governor.apply(power, firmware, now_s + 1)
    # What a governor without a past says of the same facts is what they allow.
    fresh = PowerGovernor()
    fresh.apply(power, firmware, 0.0)
    assert TIERS.index(governor.tier) >= TIERS.index(fresh.tier)


@given(courses)
@settings(max_examples=300)
def test_under_voltage_and_an_empty_battery_count_at_once(course: list[Look]) -> None:
    governor = PowerGovernor()
    now_s = 0.0
    for power, firmware, passed_s in course:
        now_s += passed_s
        governor.apply(power, firmware, now_s)
        if firmware.now is not None and firmware.now.under_voltage:
            assert governor.tier != "full"
        if power.discharging and power.battery_percent is not None:
            if power.battery_percent <= RULES.battery_least_percent:
                assert governor.tier == "least"
            if power.battery_percent <= RULES.battery_saving_percent:
                assert governor.tier != "full"


@given(courses)
@settings(max_examples=300)
def test_there_are_at_most_three_changes_in_a_minute(course: list[Look]) -> None:
    changes, _ = run(PowerGovernor(), course)
    for first, last in zip(changes, changes[3:], strict=False):
        assert last[0] - first[0] >= RULES.calm_s


@given(courses)
@settings(max_examples=300)
def test_more_is_allowed_step_by_step_and_never_soon_after_a_change(course: list[Look]) -> None:
    changes, _ = run(PowerGovernor(), course)
    for (before_s, _), (at_s, change) in itertools.pairwise(changes):
        if TIERS.index(change.tier) < TIERS.index(change.before):
            assert TIERS.index(change.before) - TIERS.index(change.tier) == 1
            assert at_s - before_s >= RULES.calm_s


@given(courses, st.sampled_from([None, False]), percents, st.booleans())
@settings(max_examples=300)
def test_on_mains_without_under_voltage_it_always_returns_to_full(
    course: list[Look], discharging: bool | None, percent: float | None, firmware_tells: bool
) -> None:
    governor = PowerGovernor()
    _, now_s = run(governor, course)
    mains = Power(on_mains=True, discharging=discharging, battery_percent=percent)
    fine = Firmware(now=FirmwareFlags() if firmware_tells else None)
    longest_s = RULES.stale_s + RULES.under_voltage_calm_most_s + 2 * RULES.calm_s
    run(governor, [(mains, fine, 10.0)] * int(longest_s / 10 + 2), now_s)
    assert governor.tier == "full"


@given(courses)
@settings(max_examples=200)
def test_what_is_no_longer_the_case_asks_for_nothing(course: list[Look]) -> None:
    forgetful = [
        (power, Firmware(now=firmware.now, since_boot=None), passed_s) for power, firmware, passed_s in course
    ]
    assert run(PowerGovernor(), course)[0] == run(PowerGovernor(), forgetful)[0]


@given(supplies, firmwares)
def test_the_same_facts_for_ever_lead_to_at_most_two_changes(power: Power, firmware: Firmware) -> None:
    changes, _ = run(PowerGovernor(), [(power, firmware, 1.0)] * 1000)
    assert len(changes) <= 2
