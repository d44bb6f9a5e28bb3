"""The last hours as they were recorded: decisions, and the tasks that they were about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from magnitude.board.boot import Stamp, age_s
from magnitude.feedback.decisions import DecisionRow
from magnitude.feedback.records import TaskRow

Row = TypeVar("Row", TaskRow, DecisionRow)


class History(msgspec.Struct, frozen=True, kw_only=True):
    """As of `now`, the newest rows first. `cut_off`: there were more than asked for."""

    now: Stamp
    decisions: list[DecisionRow]
    tasks: list[TaskRow]
    cut_off: bool = False


def lately(
    decisions: Iterable[DecisionRow], tasks: Iterable[TaskRow], now: Stamp, since_s: float, limit: int
) -> History:
    """Of rows that come the newest first, those of the last `since_s`, at most `limit` of each kind. What no clock
    can date (before the clock was set, in an earlier boot) is left out."""
    kept_decisions, more_decisions = _within(decisions, now, since_s, limit)
    kept_tasks, more_tasks = _within(tasks, now, since_s, limit)
    return History(now=now, decisions=kept_decisions, tasks=kept_tasks, cut_off=more_decisions or more_tasks)


def _within(rows: Iterable[Row], now: Stamp, since_s: float, limit: int) -> tuple[list[Row], bool]:
    found: list[Row] = []
    for row in rows:
        age = age_s(row.stamp, now)
        if age is None:
            continue
        if age > since_s:
            break
        if len(found) == limit:
            return found, True
        found.append(row)
    return found, False
