from __future__ import annotations

import math

import pytest
from hot_board import STAGES, prior
from hypothesis import given
from hypothesis import strategies as st

from magnitude.board.power_use import LEAKAGE_AT_C
from magnitude.governor.heat_model import HeatModel

TOLD = prior()
RESISTANCE = sum(stage.c_per_w for stage in STAGES)


def fed(prefill_w: float, decode_w: float, seconds: int, *, ambient_c: float = 25.0, gain: float = 1.0) -> HeatModel:
    """A model of a board that is as told, but for its air and its gain, after so many seconds of work."""
    model = HeatModel(TOLD)
    idle_w = model.idle_w(LEAKAGE_AT_C)
    rises = [stage.c_per_w * idle_w for stage in STAGES]
    for _ in range(seconds):
        temp_c = ambient_c + sum(rises)
        watts = model.idle_w(temp_c) + gain * (prefill_w + decode_w)
        for number, stage in enumerate(STAGES):
            keep = math.exp(-1.0 / stage.tau_s)
            rises[number] = rises[number] * keep + stage.c_per_w * watts * (1 - keep)
        model.observe(prefill_w, decode_w, ambient_c + sum(rises), 1.0)
    return model


@pytest.mark.parametrize(("ambient_c", "gain"), [(25.0, 1.0), (5.0, 0.8), (35.0, 1.2)])
def test_the_forecast_of_an_hour_ahead_is_what_such_a_board_settles_at(ambient_c: float, gain: float) -> None:
    model = fed(2.0, 0.0, 3600, ambient_c=ambient_c, gain=gain)
    settled_c = model.temp_c
    forecast_c, _ = model.outlook(3600.0, settled_c).at((2.0, 0.0), (2.0, 0.0))
    assert forecast_c == pytest.approx(settled_c, abs=1.0)


@given(st.floats(0.0, 6.0), st.floats(0.0, 6.0), st.floats(1.0, 300.0))
def test_more_power_is_never_forecast_to_be_cooler(less_w: float, more_w: float, horizon_s: float) -> None:
    less_w, more_w = sorted((less_w, more_w))
    outlook = fed(2.0, 0.0, 30).outlook(horizon_s, 50.0)
    cooler, warmer = (outlook.at((watts, 0.0), (watts, 0.0))[0] for watts in (less_w, more_w))
    assert cooler <= warmer + 1e-9


@given(st.floats(0.0, 6.0), st.floats(0.0, 6.0), st.floats(1.0, 300.0))
def test_a_forecast_is_never_surer_than_nothing(prefill_w: float, decode_w: float, horizon_s: float) -> None:
    _, sd_c = fed(2.0, 0.0, 30).outlook(horizon_s, 50.0).at((prefill_w, decode_w), (prefill_w, decode_w))
    assert sd_c >= 0
    assert math.isfinite(sd_c)


def test_what_was_learned_makes_the_forecast_surer() -> None:
    new, old = (fed(2.0, 0.0, seconds).outlook(120.0, 50.0).at((4.0, 0.0), (4.0, 0.0))[1] for seconds in (2, 3600))
    assert old < new / 2


def test_without_a_sensor_the_model_goes_on_by_what_runs() -> None:
    model = fed(0.0, 0.0, 600)
    before_c = model.temp_c
    for _ in range(600):
        model.observe(4.0, 0.0, None, 1.0)
    assert model.temp_c > before_c + 15


def test_an_idle_chip_takes_more_when_it_is_hot() -> None:
    model = HeatModel(TOLD)
    power = TOLD.power
    assert model.idle_w(LEAKAGE_AT_C) == pytest.approx(power.chip_idle_w + power.leakage_w)
    hotter_c = LEAKAGE_AT_C + power.leakage_doubles_c
    assert model.idle_w(hotter_c) == pytest.approx(power.chip_idle_w + 2 * power.leakage_w)


def test_months_without_a_sensor_under_more_power_than_a_chip_survives_stay_in_numbers() -> None:
    model = fed(4.0, 0.0, 60)
    for _ in range(2000):
        model.observe(30.0, 0.0, None, 3600.0)
    assert math.isfinite(model.temp_c)
    assert math.isfinite(model.outlook(120.0, model.temp_c).at((30.0, 0.0), (30.0, 0.0))[0])


def test_the_worst_case_of_a_board_that_turned_out_better_than_told_is_still_the_told_one() -> None:
    model = fed(3.0, 0.0, 3600, gain=0.5)
    told_c = 20.0 + RESISTANCE * 3.0
    assert model.settles_c((3.0, 0.0), 50.0, ambient_margin_c=10.0, gain_margin=0.25) > told_c
