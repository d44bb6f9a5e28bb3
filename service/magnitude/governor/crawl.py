"""Whether the kernel throttles this service while hardly anything gets done.

Above memory.high the kernel lets every allocation wait, and where nothing can be reclaimed it does so for ever: the
limit is never reached, nobody is killed, and the service looks alive.
"""

from __future__ import annotations

import math

from magnitude.governor.memory_ladder import Ladder
from magnitude.governor.memory_sight import MemorySight

# Throttled so many times a second, and less than this share of the usual graph runs done: it crawls. In the field the
# counter rose by 5,000 a second; one that is only near its memory.high meets it now and then.
CRAWL_EVENTS_PER_S = 10.0
CRAWL_SHARE = 0.5
# Runs a second that count as none where nothing usual is known yet.
CRAWL_RUNS_PER_S = 0.5
# Weight of the newest look in what is usual.
_NEWEST = 0.2


class Crawl:
    """Whether the kernel throttles while hardly anything gets done."""

    def __init__(self) -> None:
        self.reason = ""
        self._last: tuple[float, MemorySight] | None = None
        self._usual_per_s: float | None = None
        self._since_s: float | None = None
        self._told = False
        self._seen_s = -math.inf

    def seen(self, sight: MemorySight, now_s: float, ladder: Ladder) -> bool:
        """Whether it crawls, by this look and the one before."""
        last = self._last
        if last is not None and now_s <= last[0]:
            return self._since_s is not None  # no time has passed, so there is nothing to compare
        self._last = (now_s, sight)
        if last is None:
            return False
        passed_s = now_s - last[0]
        throttled = _rate(last[1].high_events, sight.high_events, passed_s)
        runs = self._runs_per_s(last[1], sight, passed_s)
        if throttled is not None and throttled >= CRAWL_EVENTS_PER_S and sight.busy and self._is_slow(runs):
            self._seen_s = now_s
            self._since_s = now_s if self._since_s is None else self._since_s
            self.reason = (
                f"the kernel throttles {throttled:.0f} times a second (memory.high), and {runs or 0.0:.1f} graph "
                f"runs a second are done, usually {self._usual_per_s or 0.0:.1f}"
            )
        else:
            if runs is not None and sight.busy and (throttled or 0.0) < CRAWL_EVENTS_PER_S:
                usual = self._usual_per_s
                self._usual_per_s = runs if usual is None else usual + _NEWEST * (runs - usual)
            if now_s - self._seen_s >= ladder.cool_down_s:
                self._since_s, self._told = None, False
        return self._since_s is not None

    @staticmethod
    def _runs_per_s(before: MemorySight, sight: MemorySight, passed_s: float) -> float | None:
        """None where a new engine has nothing to be compared with yet; no engine at all does nothing."""
        if sight.engine is None:
            return 0.0
        if before.engine is None or before.engine.identity != sight.engine.identity:
            return None
        return _rate(before.engine.runs, sight.engine.runs, passed_s)

    def _is_slow(self, runs: float | None) -> bool:
        if runs is None:
            return False
        usual = self._usual_per_s
        return runs <= CRAWL_RUNS_PER_S if usual is None else runs <= CRAWL_SHARE * usual

    def begins(self, now_s: float) -> bool:
        """True once for each time that it begins to crawl."""
        begins, self._told = not self._told, True
        return begins

    def lasts_s(self, now_s: float) -> float:
        return now_s - self._since_s if self._since_s is not None else 0.0


def _rate(before: int | None, after: int | None, passed_s: float) -> float | None:
    """Per second; None where either is unknown, or the counter began anew."""
    if before is None or after is None or after < before or passed_s <= 0:
        return None
    return (after - before) / passed_s
