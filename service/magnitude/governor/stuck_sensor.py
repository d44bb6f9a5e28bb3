"""Tells a sensor that is stuck from a chip that keeps its temperature."""

from __future__ import annotations

import math
from typing import NamedTuple

# By so much the chip must have warmed or cooled, by all that is known of it, while its sensor gave the very same
# figure. Sensors count in whole degrees at worst, so a good one has moved by then on a board that loses its heat
# twice as well as its profile says; and what a chip may gain unseen still lies below what separates target and hard
# limit.
STUCK_C = 3.0
# Where figures differ, the chip must have warmed by so much, and by so much more for each degree between them. A good
# sensor shows at least half of what the profile says: where resistance and power are both a quarter below the
# profile's, a board warms by 0.56 of it, and where its power is a quarter below and its capacity a quarter above, it
# begins with 0.6. One degree that noise takes from what such a sensor shows is two degrees more of the rise.
LEAST_SHARE = 0.5
NOISY_C = STUCK_C + 1 / LEAST_SHARE
# What is compared is of the last minute. Other programs that end when the engine begins hide its heat, over a longer
# time by more: with a minute, no simulated load on any board comes nearer to these bounds than three degrees of the
# rise, with two minutes one passes them.
WINDOW_S = 60.0
# So many looks in a row, a second apart, a sensor that was stuck must be off the figures that it had, by more than
# `STUCK_C`. Noise of two degrees alone is so once in an hour at most, even where those figures were all at one of its
# ends.
MOVED_LOOKS = 5


class _Look(NamedTuple):
    at_s: float
    read_c: float
    rise_c: float


class StuckSensor:
    """Fed with each reading and the rise that the work before it is believed to have made. Pure.

    Noise around a figure that does not move is no movement. So where power is put in, the rise is compared with how
    far readings have gone. Only what two looks in a row have reached counts, of both: one that is far off says
    nothing.
    """

    def __init__(self, heed_c: float) -> None:
        """From `heed_c` on, readings that are not all the same are heeded: they may be true."""
        self._heed_c = heed_c
        self._same = _Same()
        self._looks: list[_Look] = []
        # Of a stuck one: the lowest and the highest of the figures that it had, and how long it has been off them.
        self._had_c: tuple[float, float] | None = None
        self._off_looks = 0

    def look(self, read_c: float, rise_c: float, now_s: float) -> bool:
        """Whether the reading cannot be true any more. It is believed again once it moves."""
        same = self._same.look(read_c, rise_c)
        self._looks.append(_Look(now_s, read_c, rise_c))
        while now_s - self._looks[0].at_s > WINDOW_S:
            del self._looks[0]
        if self._had_c is None:
            self._had_c = self._stays_c()
        else:
            low_c, high_c = self._had_c
            off = read_c < low_c - STUCK_C or read_c > high_c + STUCK_C
            self._off_looks = self._off_looks + 1 if off else 0
            if self._off_looks == MOVED_LOOKS:
                del self._looks[:-MOVED_LOOKS]
                self._had_c, self._off_looks = None, 0
        return same or (self._had_c is not None and read_c < self._heed_c)

    def _stays_c(self) -> tuple[float, float] | None:
        """The range of the last readings that have not gone as far as they must have, None: there are none."""
        coolest_c = min(look.rise_c for look in self._looks)
        # Once readings have gone so far, looking further back finds nothing.
        most_c = LEAST_SHARE * (self._looks[-1].rise_c - coolest_c - NOISY_C)
        if most_c <= 0:
            return None
        now_c = min(look.rise_c for look in self._looks[-2:])
        low_c, high_c, from_c = math.inf, -math.inf, math.inf
        after = None
        for before, later in zip(self._looks[-2::-1], self._looks[:0:-1], strict=True):
            low_c = min(low_c, max(before.read_c, later.read_c))
            high_c = max(high_c, min(before.read_c, later.read_c))
            if after is not None:
                # A reading may show what was put in since the last look, which is known from the next one.
                from_c = min(from_c, max(later.rise_c, after.rise_c))
            after = later
            gone_c = max(0.0, high_c - low_c)
            if gone_c > most_c:
                return None
            if gone_c < LEAST_SHARE * (now_c - from_c - NOISY_C):
                return min(low_c, high_c), max(low_c, high_c)
        return None


class _Same:
    """The rises while the reading was the very same: then a chip that must have cooled tells as well."""

    def __init__(self) -> None:
        self._read_c: float | None = None
        self._least_c = 0.0
        self._most_c = 0.0

    def look(self, read_c: float, rise_c: float) -> bool:
        if read_c != self._read_c:
            self._read_c = read_c
            self._least_c = self._most_c = rise_c
        self._least_c, self._most_c = min(self._least_c, rise_c), max(self._most_c, rise_c)
        return self._most_c - self._least_c > STUCK_C
