"""How rows of tasks stand in SQLite: tables, and the way there and back.

Plain columns, so that `sqlite3 records.db` answers questions nobody thought of. What repeats in every row (the boot,
the plan) stands in a table of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from magnitude.board.boot import Stamp
from magnitude.feedback.records import FAILURES, Outcome, TaskRecord, TaskRow
from magnitude.feedback.situation import PlanFacts, Situation

if TYPE_CHECKING:
    import sqlite3

# Written into the file's header (`PRAGMA application_id`), so that a database of somebody else is not taken for ours:
# "Magn" in ASCII.
APPLICATION_ID = 0x4D61676E

_TASK_COLUMNS = (
    "kind",
    "model",
    "outcome",
    "code",
    "task",
    "request",
    "prompt_tokens",
    "new_tokens",
    "cached_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "queue_s",
    "prefill_s",
    "decode_s",
    "batch",
)
_SITUATION_COLUMNS = (
    "queue_depth",
    "running",
    "engine_restarts",
    "engine_rss_bytes",
    "memory_headroom_bytes",
    "memory_limit_bytes",
    "memory_step",
    "temperature_c",
)
_COLUMNS = ("wall_s", "at_s", "boot", "plan", *_TASK_COLUMNS, *_SITUATION_COLUMNS)

# What takes an older file to the next schema number, the first of them an empty file to 1. A released step is never
# changed: files that it made are out there.
STEPS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE boots (id INTEGER PRIMARY KEY, boot_id TEXT NOT NULL UNIQUE)",
        "CREATE TABLE plans (plan_id TEXT PRIMARY KEY, facts TEXT NOT NULL)",
        """CREATE TABLE tasks (
            id INTEGER PRIMARY KEY,
            wall_s REAL NOT NULL,
            at_s REAL NOT NULL,
            boot INTEGER NOT NULL REFERENCES boots(id),
            plan TEXT REFERENCES plans(plan_id),
            kind TEXT NOT NULL,
            model TEXT NOT NULL,
            outcome TEXT NOT NULL,
            code TEXT NOT NULL,
            task TEXT NOT NULL,
            request TEXT NOT NULL,
            prompt_tokens INTEGER NOT NULL,
            new_tokens INTEGER NOT NULL,
            cached_tokens INTEGER NOT NULL,
            drafted_tokens INTEGER NOT NULL,
            accepted_tokens INTEGER NOT NULL,
            queue_s REAL NOT NULL,
            prefill_s REAL NOT NULL,
            decode_s REAL NOT NULL,
            batch REAL NOT NULL,
            queue_depth INTEGER NOT NULL,
            running INTEGER NOT NULL,
            engine_restarts INTEGER NOT NULL,
            engine_rss_bytes INTEGER,
            memory_headroom_bytes INTEGER,
            memory_limit_bytes INTEGER,
            memory_step TEXT NOT NULL,
            temperature_c REAL
        )""",
        # Failures are few and asked for alone; an index over all rows would double what each task writes.
        "CREATE INDEX failures ON tasks (id) WHERE outcome NOT IN ('ok', 'cancelled')",
    ),
)
SCHEMA = len(STEPS)

_INSERT = f"INSERT INTO tasks ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608 - names
_SELECT = (
    f"SELECT {', '.join(_COLUMNS)}, boot_id, facts FROM tasks "  # noqa: S608 - names
    "JOIN boots ON boots.id = boot LEFT JOIN plans ON plan_id = plan"
)


def insert(connection: sqlite3.Connection, rows: Iterable[TaskRow]) -> None:
    """Add `rows` in their order, inside the caller's transaction."""
    boots: dict[str, int] = {}
    plans: set[str] = set()
    for row in rows:
        boot_id, plan = row.stamp.boot_id, row.situation.plan
        if boot_id not in boots:
            connection.execute("INSERT OR IGNORE INTO boots (boot_id) VALUES (?)", (boot_id,))
            (boots[boot_id],) = connection.execute("SELECT id FROM boots WHERE boot_id = ?", (boot_id,)).fetchone()
        if plan is not None and plan.plan_id not in plans:
            plans.add(plan.plan_id)
            facts = msgspec.json.encode(plan).decode()
            connection.execute("INSERT OR IGNORE INTO plans VALUES (?, ?)", (plan.plan_id, facts))
        values = [row.stamp.wall_s, row.stamp.at_s, boots[boot_id], plan.plan_id if plan is not None else None]
        values += [getattr(row.task, name) for name in _TASK_COLUMNS]
        values += [getattr(row.situation, name) for name in _SITUATION_COLUMNS]
        connection.execute(_INSERT, values)


def recent(connection: sqlite3.Connection, limit: int, outcomes: Sequence[Outcome] = ()) -> list[TaskRow]:
    """The newest rows first, of all outcomes or those named."""
    if not outcomes:
        found = connection.execute(f"{_SELECT} ORDER BY tasks.id DESC LIMIT ?", (limit,))
    else:
        # Said again in words so that the planner sees that the index of failures holds them all.
        failures = "" if {"ok", "cancelled"} & set(outcomes) else "AND outcome NOT IN ('ok', 'cancelled')"
        marks = ", ".join("?" * len(outcomes))
        found = connection.execute(
            f"{_SELECT} WHERE outcome IN ({marks}) {failures} ORDER BY tasks.id DESC LIMIT ?", (*outcomes, limit)
        )
    return [_row(values) for values in found.fetchall()]


def failures(connection: sqlite3.Connection, limit: int) -> list[TaskRow]:
    """The newest of the tasks that went wrong."""
    return recent(connection, limit, FAILURES)


def counts(connection: sqlite3.Connection) -> dict[str, int]:
    """How many tasks ended in which way, of all that are kept."""
    return dict(connection.execute("SELECT outcome, count(*) FROM tasks GROUP BY outcome").fetchall())


def _row(values: Sequence[Any]) -> TaskRow:
    by_name: dict[str, Any] = dict(zip((*_COLUMNS, "boot_id", "facts"), values, strict=True))
    facts = by_name["facts"]
    return TaskRow(
        stamp=Stamp(wall_s=by_name["wall_s"], at_s=by_name["at_s"], boot_id=by_name["boot_id"]),
        task=msgspec.convert({name: by_name[name] for name in _TASK_COLUMNS}, TaskRecord),
        situation=Situation(
            **{name: by_name[name] for name in _SITUATION_COLUMNS},
            plan=msgspec.json.decode(facts, type=PlanFacts) if facts is not None else None,
        ),
    )
