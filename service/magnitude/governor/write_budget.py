"""How often clock limits may be written.

Every write makes the kernel change a policy, wakes the firmware, and shows in everybody's latency; a governor that
writes at each sample saws. So there is a strict bound for any minute, and what can wait leaves the last writes of it
to what cannot.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

WINDOW_S = 60.0
# In any minute. The slow part of a board without a fan follows within minutes and its chip within seconds: six writes
# are a step every ten seconds, more than heat ever asks for.
MOST_WRITES = 6

# Why a limit is written, the most urgent first.
Urgency = Literal["heat", "speed", "tuning", "rest"]
# Writes that the window may already hold for the next one to be allowed. Heat may take the last one; a request that
# begins may be given its clock as long as one is left for heat; tuning leaves both a place; and a rest, which a
# request ends with a second write, is taken only in quiet times.
_AT_MOST: dict[Urgency, int] = {"heat": MOST_WRITES - 1, "speed": MOST_WRITES - 2, "tuning": 3, "rest": 2}


class WriteBudget:
    """Counts writes over a sliding window. Times are monotonic."""

    def __init__(self) -> None:
        self._writes_s: deque[float] = deque()

    def allows(self, urgency: Urgency, now_s: float) -> bool:
        while self._writes_s and now_s - self._writes_s[0] >= WINDOW_S:
            self._writes_s.popleft()
        return len(self._writes_s) <= _AT_MOST[urgency]

    def spend(self, now_s: float) -> None:
        self._writes_s.append(now_s)
