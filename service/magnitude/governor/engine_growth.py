"""Whether an engine holds more memory of its own than was planned for it."""

from __future__ import annotations

import math

from magnitude.governor.memory_ladder import Ladder
from magnitude.governor.memory_sight import MemorySight

# An engine's own memory may differ from the plan by so much, whatever the percentage says: the C library's arenas and
# what the interpreter allocates as it goes.
ENGINE_SLACK_BYTES = 64 << 20
# A model whose plan is wrong would have its engine replaced over and over: at most so often, and each time after
# twice as long.
GROWTH_FIRST_S = 600.0
GROWTH_MOST_S = 6 * 3600.0


class Growth:
    """Whether an engine holds more memory of its own than was planned for it."""

    def __init__(self) -> None:
        self._identity: tuple[int, int] | None = None
        self._since_s: float | None = None
        self._trimmed = False
        self._wait_s = GROWTH_FIRST_S
        self._recycled_s = -math.inf

    def seen(self, sight: MemorySight, now_s: float, ladder: Ladder) -> str:
        """In words, what the engine holds too much; "" when it does not."""
        engine = sight.engine
        if engine is None or engine.planned_bytes is None or engine.planned_bytes <= 0:
            return ""
        most_bytes = max(
            engine.planned_bytes * ladder.engine_limit_percent / 100, engine.planned_bytes + ENGINE_SLACK_BYTES
        )
        if engine.identity != self._identity or engine.own_bytes <= most_bytes:
            self._identity = engine.identity
            self._since_s, self._trimmed = None, False
        if engine.own_bytes <= most_bytes:
            return ""
        self._since_s = now_s if self._since_s is None else self._since_s
        return (
            f"the engine holds {in_mb(engine.own_bytes)} of its own; {in_mb(engine.planned_bytes)} were planned, "
            f"{in_mb(int(most_bytes))} are allowed"
        )

    def to_trim(self, now_s: float, ladder: Ladder) -> bool:
        """True once, when it has been too large for a while: freed memory that was not given back is no growth."""
        if self._trimmed or self._since_s is None or now_s - self._since_s < ladder.cool_down_s:
            return False
        self._trimmed, self._since_s = True, now_s
        return True

    def to_recycle(self, now_s: float, ladder: Ladder) -> bool:
        if not self._trimmed or self._since_s is None or now_s - self._since_s < ladder.cool_down_s:
            return False
        since_last_s = now_s - self._recycled_s
        if since_last_s < self._wait_s:
            return False
        # One that has served twice the wait without growing was only unlucky.
        self._wait_s = GROWTH_FIRST_S if since_last_s > 2 * self._wait_s else min(GROWTH_MOST_S, 2 * self._wait_s)
        self._recycled_s = now_s  # trimming again is of no use while the next one is on its way
        return True


def in_mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB"
