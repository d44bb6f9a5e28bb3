"""Tells a sensor that is stuck from a chip that keeps its temperature."""

from __future__ import annotations

# By so much the chip must have warmed or cooled, by all that is known of it, while its sensor gave the very same
# figure. Sensors count in whole degrees at worst, so a good one has moved by then on a board that loses its heat
# twice as well as its profile says; and what a chip may gain unseen still lies below what separates target and hard
# limit.
STUCK_C = 3.0


class StuckSensor:
    """Fed with each reading and the rise that the work is believed to make. Pure."""

    def __init__(self) -> None:
        self._read_c: float | None = None
        self._least_c = 0.0
        self._most_c = 0.0

    def look(self, read_c: float, rise_c: float) -> bool:
        """Whether the reading cannot be true any more. It is believed again once it moves."""
        if read_c != self._read_c:
            self._read_c = read_c
            self._least_c = self._most_c = rise_c
        self._least_c, self._most_c = min(self._least_c, rise_c), max(self._most_c, rise_c)
        return self._most_c - self._least_c > STUCK_C
