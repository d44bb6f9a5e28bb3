from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.board.heat import FRESH_S, warmest
from magnitude.board.heat import fused as fused_of
from magnitude.board.heat import hottest as hottest_of
from magnitude.board.snapshot import SensorKind, TempSensor

KINDS: list[SensorKind] = ["cpu", "gpu", "npu", "case", "battery", "other"]


def temp(kind: SensorKind, temp_c: float | None, age_s: float | None = 0.0) -> TempSensor:
    return TempSensor(name=kind, kind=kind, temp_c=temp_c, age_s=age_s)


def fused(temps: list[TempSensor]) -> float | None:
    return fused_of(warmest(temps))


def hottest(temps: list[TempSensor]) -> float | None:
    return hottest_of(warmest(temps))


def test_the_three_places_count_by_their_weights() -> None:
    assert fused([temp("cpu", 80.0), temp("gpu", 60.0), temp("case", 40.0)]) == pytest.approx(48 + 18 + 4)


def test_what_is_missing_leaves_its_share_to_the_others() -> None:
    assert fused([temp("cpu", 80.0), temp("case", 45.0)]) == pytest.approx((0.6 * 80 + 0.1 * 45) / 0.7)
    assert fused([temp("gpu", 60.0)]) == pytest.approx(60.0)
    assert fused([]) is None


def test_the_warmest_of_a_place_stands_for_it() -> None:
    assert hottest([temp("cpu", 70.0), temp("cpu", 88.0), temp("npu", 95.0), temp("other", 100.0)]) == 88.0
    assert fused([temp("battery", 30.0), temp("case", 45.0)]) == pytest.approx(45.0)


def test_an_old_sample_says_nothing_about_now() -> None:
    stale = temp("cpu", 40.0, FRESH_S + 0.1)
    assert hottest([stale]) is None
    assert fused([stale, temp("gpu", 60.0)]) == pytest.approx(60.0)
    assert hottest([temp("cpu", None, None)]) is None


sensors = st.lists(
    st.builds(temp, st.sampled_from(KINDS), st.none() | st.floats(-40, 130), st.none() | st.floats(0, 10))
)


@given(sensors)
def test_the_fused_temperature_lies_between_those_that_it_is_made_of(temps: list[TempSensor]) -> None:
    fresh = [t.temp_c for t in temps if t.temp_c is not None and t.age_s is not None and t.age_s <= FRESH_S]
    whole = fused(temps)
    assert whole is None or min(fresh) - 1e-9 <= whole <= max(fresh) + 1e-9
