"""Medians with their spread, and ratios paired by round."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Median, smallest and largest of the rounds' values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises `ValueError` when there are none."""
        if not values:
            raise ValueError("no values to take a median of")
        return cls(median=median(values), low=min(values), high=max(values))

    def scaled(self, factor: float) -> Spread:
        """In another unit."""
        return Spread(median=self.median * factor, low=self.low * factor, high=self.high * factor)


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Spread of ours/theirs, round by round.

    Neighbours in time share the machine's mood (clock, caches, what else runs), so the ratio of a round is steadier
    than the ratio of two medians. Raises `ValueError` when the rounds do not match.
    """
    return Spread.of([mine / other for mine, other in zip(ours, theirs, strict=True)])
