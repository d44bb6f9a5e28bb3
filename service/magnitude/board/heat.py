"""One temperature out of many sensors. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from magnitude.board.snapshot import TempSensor

# A little more than the longest time between two samples (`sampling_rate.CALM_S`): one that is older was to be
# followed by another, which did not come.
FRESH_S = 2.5
# How much each place says about what the board as a whole is like. What is missing leaves its share to the others.
WEIGHTS: tuple[tuple[frozenset[str], float], ...] = (
    (frozenset({"cpu"}), 0.6),
    (frozenset({"gpu"}), 0.3),
    (frozenset({"case", "battery"}), 0.1),
)


def warmest(temps: Iterable[TempSensor], kinds: frozenset[str]) -> float | None:
    """Of the fresh sensors of those kinds; None where there is none."""
    return max(
        (
            sensor.temp_c
            for sensor in temps
            if sensor.kind in kinds
            and sensor.temp_c is not None
            and sensor.age_s is not None
            and sensor.age_s <= FRESH_S
        ),
        default=None,
    )


def hottest(temps: Iterable[TempSensor]) -> float | None:
    """The warmest fresh sensor at the processor, in °C."""
    return warmest(temps, frozenset({"cpu"}))


def fused(temps: Iterable[TempSensor]) -> float | None:
    """Processor, graphics, and case or battery by their weights, in °C; each place by its warmest fresh sensor."""
    temps = tuple(temps)
    parts = [(share, temp) for kinds, share in WEIGHTS if (temp := warmest(temps, kinds)) is not None]
    total = sum(share for share, _ in parts)
    return sum(share * temp for share, temp in parts) / total if parts else None
