"""The steps that are taken when memory gets short, and at how much of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import msgspec

Step = Literal["normal", "trim", "shrink_kv", "unload_idle", "refuse_long", "recycle", "restart"]
STEPS: tuple[Step, ...] = ("normal", "trim", "shrink_kv", "unload_idle", "refuse_long", "recycle", "restart")

GIB = 1 << 30

# Percent of the limit at which each step begins, by the size of the limit. What counts is what is left: a prefill
# chunk of a model of half a billion parameters takes 50 MB, a new engine process as much before its model. So
# recycling begins while 110 MB are left on the smallest board (11 % of 1 GiB), and a restart while a new interpreter
# still fits (6 %: 60 MB). Larger boards have as much left at a higher share, and begin later. The first steps cost
# little and come early enough for the others to be seldom needed.
BY_LIMIT_BYTES: tuple[tuple[int, tuple[int, ...]], ...] = (
    (1 * GIB, (70, 75, 80, 84, 89, 94)),
    (2 * GIB, (74, 79, 83, 87, 91, 95)),
    (4 * GIB, (78, 82, 86, 90, 93, 96)),
)
LARGER = (82, 86, 89, 92, 95, 97)


class Ladder(msgspec.Struct, frozen=True, kw_only=True):
    """`thresholds_percent` of the limit, one for each step after `normal`; empty: by the size of the limit.

    Two changes upwards are `cool_down_s` apart, unless memory is at its very end (`extreme_percent`): then all steps
    that can be taken back are taken at once. A step is left again once the memory has been `hysteresis_percent` below
    its threshold for `calm_s`. The other times follow from the cool-down, too.
    """

    thresholds_percent: tuple[int, ...] = ()
    # Three looks of 5 s: freed pages and a model that leaves show in the kernel's figures within one or two.
    cool_down_s: float = 15.0
    # A step's own effect is a few percent on a small board; a smaller distance would undo it at once.
    hysteresis_percent: float = 4.0
    extreme_percent: float = 98.0
    # Share of ten seconds in which all tasks waited for memory. At a tenth, tokens come visibly slower.
    stall_percent: float = 10.0
    # An engine above this share of what was planned for it has grown.
    engine_limit_percent: float = 150.0

    @property
    def calm_s(self) -> float:
        """Slower down than up: what was given back too early has to be taken again."""
        return 2 * self.cool_down_s

    @property
    def crawl_s(self) -> float:
        """No better for so long while the kernel throttles: then what was shed was not enough. 30 s by default."""
        return 2 * self.cool_down_s

    @property
    def again_s(self) -> float:
        """Cheap steps are taken again after so long while memory stays short: what was freed since then is given
        back, too."""
        return 4 * self.cool_down_s

    @property
    def recycle_s(self) -> float:
        """Until a new engine has shown what it changes. A minute by default: process and models take 20 s on a Pi 5
        with a slow card."""
        return 4 * self.cool_down_s

    def thresholds(self, limit_bytes: int) -> tuple[int, ...]:
        """Percent of `limit_bytes` at which `trim` and the steps behind it begin."""
        if self.thresholds_percent:
            return self.thresholds_percent
        return next((percent for size, percent in BY_LIMIT_BYTES if limit_bytes <= size), LARGER)


def wrong_thresholds(percent: Sequence[int]) -> str | None:
    """Why `percent` cannot be the thresholds of the steps, or None."""
    if percent and len(percent) != len(STEPS) - 1:
        return f"there are {len(percent)}, and {len(STEPS) - 1} steps: {', '.join(STEPS[1:])}"
    if any(later <= earlier for earlier, later in itertools.pairwise(percent)):
        return "each must be higher than the one before it"
    return None
