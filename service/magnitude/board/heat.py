"""One temperature out of many sensors. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from magnitude.board.snapshot import SensorKind, TempSensor

# A little more than the longest time between two samples (`sampling_rate.CALM_S`): one that is older was to be
# followed by another, which did not come.
FRESH_S = 2.5
# How much each place says about what the board as a whole is like. What is missing leaves its share to the others.
WEIGHTS: tuple[tuple[tuple[SensorKind, ...], float], ...] = (
    (("cpu",), 0.6),
    (("gpu",), 0.3),
    (("case", "battery"), 0.1),
)


def warmest(temps: Iterable[TempSensor]) -> dict[SensorKind, float]:
    """By kind, the warmest fresh sensor, in °C."""
    found: dict[SensorKind, float] = {}
    for sensor in temps:
        temp_c, age_s = sensor.temp_c, sensor.age_s
        if temp_c is not None and age_s is not None and age_s <= FRESH_S:
            found[sensor.kind] = max(found.get(sensor.kind, temp_c), temp_c)
    return found


def hottest(by_kind: Mapping[SensorKind, float]) -> float | None:
    """The warmest sensor at the processor, in °C."""
    return by_kind.get("cpu")


def fused(by_kind: Mapping[SensorKind, float]) -> float | None:
    """Processor, graphics, and case or battery by their weights, in °C; each place by its warmest sensor."""
    weighed = total = 0.0
    for kinds, share in WEIGHTS:
        temps = [by_kind[kind] for kind in kinds if kind in by_kind]
        if temps:
            weighed += share * max(temps)
            total += share
    return weighed / total if total else None
