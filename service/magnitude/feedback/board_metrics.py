"""Heat, clocks and supply for Prometheus, asked for when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from magnitude.board.brief import BoardState
from magnitude.governor.power import TIERS
from magnitude.governor.thermal_report import BoardView
from magnitude.governor.thermal_terms import HeatState

_HEAT: tuple[HeatState, ...] = ("cool", "warm", "hot", "blind")
_FLAGS = ("under_voltage", "clock_capped", "throttled", "soft_limit")


class BoardCollector(Collector):
    """All series come from one `BoardView`. What is unknown has no series."""

    def __init__(self) -> None:
        self.source: Callable[[], BoardView] = BoardView

    def collect(self) -> Iterator[Metric]:
        view = self.source()
        yield from _temperatures(view.board)
        yield from _clocks(view.board)
        yield from _firmware(view.board)
        thermal = view.thermal
        states = GaugeMetricFamily("magnitude_heat_state", "1 for the state that heat is in.", labels=["state"])
        for state in _HEAT if thermal.governor is not None else ():
            states.add_metric([state], thermal.governor is not None and thermal.governor.state == state)
        yield states
        yield GaugeMetricFamily(
            "magnitude_heat_duty", "Share of the time that heat lets the engine compute.", value=thermal.wanted.duty
        )
        tier = TIERS.index(view.power.tier)
        yield GaugeMetricFamily("magnitude_power_tier", "What the supply allows: 0 full to 2 least.", value=tier)
        decisions = CounterMetricFamily(
            "magnitude_board_decisions", "Decisions about heat and supply.", labels=["source", "kind"]
        )
        for one in thermal.decisions_total:
            decisions.add_metric([one.source, one.kind], one.total)
        yield decisions


def _temperatures(board: BoardState) -> Iterator[Metric]:
    labels = ["sensor", "kind"]
    temps = GaugeMetricFamily("magnitude_temperature_celsius", "Last good sample of a sensor.", labels=labels)
    ages = GaugeMetricFamily("magnitude_sensor_age_seconds", "How old that sample is.", labels=labels)
    for sensor in board.temps:
        if sensor.temp_c is not None:
            temps.add_metric([sensor.name, sensor.kind], sensor.temp_c)
        if sensor.age_s is not None:
            ages.add_metric([sensor.name, sensor.kind], sensor.age_s + (board.age_s or 0.0))
    yield temps
    yield ages


def _clocks(board: BoardState) -> Iterator[Metric]:
    clocks = GaugeMetricFamily("magnitude_clock_hertz", "The clock that the kernel asks for.", labels=["policy"])
    caps = GaugeMetricFamily("magnitude_clock_cap_hertz", "The upper limit in force.", labels=["policy"])
    for clock in board.clocks:
        for family, khz in ((clocks, clock.cur_khz), (caps, clock.cap_khz)):
            if khz is not None:
                family.add_metric([clock.name], khz * 1000)
    yield clocks
    yield caps


def _firmware(board: BoardState) -> Iterator[Metric]:
    flags = GaugeMetricFamily("magnitude_firmware_flag", "What the firmware does now.", labels=["flag"])
    if (now := board.firmware.now) is not None:
        for name in _FLAGS:
            flags.add_metric([name], getattr(now, name))
    yield flags
