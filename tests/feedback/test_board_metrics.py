from __future__ import annotations

import pytest

from magnitude.board.brief import BoardState, ClockState
from magnitude.board.profiles import load_profile
from magnitude.board.snapshot import Firmware, FirmwareFlags, TempSensor
from magnitude.feedback.metrics import Metrics
from magnitude.governor.decision import DecisionCount
from magnitude.governor.power_state import PowerState
from magnitude.governor.thermal import ThermalGovernor, state_of
from magnitude.governor.thermal_prior import limits_of, prior_of
from magnitude.governor.thermal_report import BoardView, ThermalReport
from magnitude.governor.wanted import Wanted

PROFILE = load_profile("pi5-bare")
WARM = BoardView(
    board=BoardState(
        age_s=0.5,
        temps=(
            TempSensor(name="cpu-thermal", kind="cpu", temp_c=71.5, age_s=0.25),
            TempSensor(name="broken", kind="other", fault="EIO"),
        ),
        clocks=(ClockState(name="policy0", cur_khz=1_500_000, cap_khz=1_800_000),),
        firmware=Firmware(now=FirmwareFlags(soft_limit=True)),
    ),
    thermal=ThermalReport(
        governor=state_of(ThermalGovernor(prior_of(PROFILE), limits_of(PROFILE))),
        wanted=Wanted(duty=0.8),
        decisions_total=[DecisionCount(source="thermal", kind="caps", total=7)],
    ),
    power=PowerState(tier="saving"),
)


def rendered(view: BoardView) -> list[str]:
    metrics = Metrics()
    metrics.watch_board(lambda: view)
    return metrics.render().decode().splitlines()


@pytest.mark.parametrize(
    "line",
    [
        'magnitude_temperature_celsius{kind="cpu",sensor="cpu-thermal"} 71.5',
        'magnitude_sensor_age_seconds{kind="cpu",sensor="cpu-thermal"} 0.75',
        'magnitude_clock_hertz{policy="policy0"} 1.5e+09',
        'magnitude_clock_cap_hertz{policy="policy0"} 1.8e+09',
        'magnitude_firmware_flag{flag="soft_limit"} 1.0',
        'magnitude_firmware_flag{flag="throttled"} 0.0',
        'magnitude_heat_state{state="cool"} 1.0',
        'magnitude_heat_state{state="hot"} 0.0',
        "magnitude_heat_duty 0.8",
        "magnitude_power_tier 1.0",
        'magnitude_board_decisions_total{kind="caps",source="thermal"} 7.0',
    ],
)
def test_heat_clocks_and_supply_are_series(line: str) -> None:
    assert line in rendered(WARM)


def test_what_is_unknown_has_no_series() -> None:
    assert not [line for line in rendered(WARM) if 'sensor="broken"' in line]
    names = {line.split("{")[0].split()[0] for line in rendered(BoardView()) if not line.startswith("#")}
    assert not names & {
        "magnitude_temperature_celsius",
        "magnitude_sensor_age_seconds",
        "magnitude_clock_hertz",
        "magnitude_clock_cap_hertz",
        "magnitude_firmware_flag",
        "magnitude_heat_state",
    }
