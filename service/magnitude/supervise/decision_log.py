"""Decisions about the board: the last ones to look at, a line of the log for each, and how many there were."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable

from magnitude.governor.decision import Decision, DecisionCount, DecisionTaken, Kind, Source

log = logging.getLogger("magnitude.board")

# Six changes of clocks a minute at most, and what comes with them: the last ten minutes of a busy board.
SHOWN = 64


class DecisionLog:
    """For one event loop. `told` keeps what a person would want to know of; it must not block."""

    def __init__(self, clock: Callable[[], float], told: Callable[[Decision], None] = lambda decision: None) -> None:
        self._clock = clock
        self._told = told
        self._taken: deque[tuple[float, Decision]] = deque(maxlen=SHOWN)
        self._counts: Counter[tuple[Source, Kind]] = Counter()

    def add(self, decision: Decision, *, level: int = logging.INFO) -> None:
        self._taken.append((self._clock(), decision))
        self._counts[decision.source, decision.kind] += 1
        fields = {"kind": decision.kind, "reason": decision.reason}
        log.log(level, "%s: %s", decision.source, decision.what, extra={"fields": fields})
        if level > logging.DEBUG:
            self._told(decision)

    def last(self) -> list[DecisionTaken]:
        """The newest first."""
        now_s = self._clock()
        return [
            DecisionTaken(
                source=one.source,
                kind=one.kind,
                what=one.what,
                reason=one.reason,
                ago_s=round(max(0.0, now_s - at_s), 1),
            )
            for at_s, one in reversed(self._taken)
        ]

    def totals(self) -> list[DecisionCount]:
        """Since the start."""
        counted = sorted(self._counts.items())
        return [DecisionCount(source=source, kind=kind, total=total) for (source, kind), total in counted]
