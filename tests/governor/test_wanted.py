from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.board.snapshot import ClockPolicy
from magnitude.governor.power import PowerLimits
from magnitude.governor.thermal_terms import Announce, PreferSmaller, SetCaps, SetConcurrency, SetDuty, SetThreads
from magnitude.governor.wanted import Wanted, caps_together, in_words, lower

LITTLE = ClockPolicy(name="policy0", opps_khz=(400_000, 1_000_000, 1_800_000))
BIG = ClockPolicy(name="policy4", opps_khz=(400_000, 1_200_000, 2_400_000))
LIMITS = st.none() | st.integers(400_000, 2_400_000)


def test_each_effect_changes_what_it_names_and_nothing_else() -> None:
    wanted = Wanted()
    for effect in (
        SetCaps({"policy0": 1_000_000}, ""),
        SetCaps({"policy4": 1_200_000}, ""),
        SetDuty(0.5, ""),
        SetConcurrency(1, ""),
        SetThreads(4, 2, ""),
        PreferSmaller(True, ""),
        Announce("hot", "warm", ""),
    ):
        wanted = wanted.after(effect)
    assert wanted == Wanted(
        caps_khz={"policy0": 1_000_000, "policy4": 1_200_000},
        duty=0.5,
        concurrency=1,
        prefill_threads=4,
        decode_threads=2,
        smaller=True,
    )


def test_the_supply_limits_clocks_that_heat_does_not_know_of() -> None:
    wanted = Wanted(caps_khz={"policy4": 400_000})
    together = caps_together(wanted, PowerLimits(clock_share=0.7), [LITTLE, BIG])
    assert together == {"policy0": 1_000_000, "policy4": 400_000}


def test_what_nobody_limits_any_more_is_given_back() -> None:
    assert caps_together(Wanted(), PowerLimits(), [LITTLE, BIG], ["policy0"]) == {"policy0": None}


@given(LIMITS, st.sampled_from([0.5, 0.7, 1.0]))
def test_no_clock_is_above_what_either_asks_for(khz: int | None, share: float) -> None:
    together = caps_together(Wanted(caps_khz={"policy4": khz}), PowerLimits(clock_share=share), [BIG])
    limit = together["policy4"]
    assert khz is None or (limit is not None and limit <= khz)
    assert share == 1.0 or (limit is not None and limit <= share * 2_400_000)


def test_of_two_limits_none_limits_nothing() -> None:
    assert (lower(None, None), lower(None, 3), lower(2, None), lower(2, 3)) == (None, 3, 2, 2)


def test_limits_are_said_in_megahertz() -> None:
    assert in_words({"policy0": 1_500_000, "policy4": None}) == "policy0 1500 MHz, policy4 as found"
    assert in_words({}) == "none"
