"""The highest of some values since any moment of the last hour, without keeping them all."""

from __future__ import annotations

from collections import deque

# Tasks that run longer get the highest of their last hour.
KEPT_S = 3600.0


class Peaks:
    """Pure: times are monotonic seconds."""

    def __init__(self) -> None:
        # Since when the highest until now is that value: values fall from left to right.
        self._highest: deque[tuple[float, float]] = deque()

    def add(self, value: float, now_s: float) -> None:
        """The value is so from now on, until the next one is told."""
        since_s = now_s
        while self._highest and self._highest[-1][1] <= value:
            since_s, _ = self._highest.pop()
        self._highest.append((since_s, value))
        while len(self._highest) > 1 and self._highest[1][0] <= now_s - KEPT_S:
            self._highest.popleft()

    def since(self, at_s: float) -> float | None:
        """The highest since `at_s`, what was so at that moment included. None: nothing was told yet."""
        highest = None
        for since_s, value in reversed(self._highest):
            highest = value
            if since_s <= at_s:
                break
        return highest
