"""How rows of tasks stand in SQLite: tables, and the way there and back.

Plain columns, so that `sqlite3 records.db` answers questions nobody thought of. What repeats in every row (the boot,
the plan, the strategy) stands in a table of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from magnitude.board.boot import Stamp
from magnitude.feedback.circumstances import Circumstances, PlanFacts
from magnitude.feedback.decisions import DecisionRow
from magnitude.feedback.records import FAILURES, Outcome, TaskRecord, TaskRow
from magnitude.policy.situation import Situation
from magnitude.policy.strategy import Strategy

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
    "peak_rss_bytes",
)
_CIRCUMSTANCE_COLUMNS = (
    "queue_depth",
    "running",
    "engine_restarts",
    "engine_rss_bytes",
    "memory_headroom_bytes",
    "memory_limit_bytes",
    "memory_step",
    "temperature_c",
    "throttled",
    "clock_share",
    "cores",
    "field_test",
    "arm",
)
# The situation for which the strategy was in force, field by field; all NULL where nobody chose.
_CHOSEN = Situation.__struct_fields__
_CHOSEN_COLUMNS = tuple(f"chosen_{name}" for name in _CHOSEN)
_COLUMNS = (
    "wall_s",
    "at_s",
    "boot",
    "plan",
    "strategy",
    *_TASK_COLUMNS,
    *_CIRCUMSTANCE_COLUMNS,
    *_CHOSEN_COLUMNS,
)
_DECISION_FIELDS = (
    "source",
    "model",
    "kind",
    "part",
    "key",
    "from_id",
    "to_id",
    "what",
    "reason",
    "delay_s",
    "gain",
    "repeats",
)
_DECISION_COLUMNS = ("wall_s", "at_s", "boot", "strategy", *_DECISION_FIELDS)

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
    (
        "CREATE TABLE strategies (strategy_id TEXT PRIMARY KEY, settings TEXT NOT NULL)",
        "ALTER TABLE tasks ADD COLUMN strategy TEXT REFERENCES strategies(strategy_id)",
        "ALTER TABLE tasks ADD COLUMN peak_rss_bytes INTEGER",
        "ALTER TABLE tasks ADD COLUMN throttled INTEGER",
        "ALTER TABLE tasks ADD COLUMN clock_share REAL",
        "ALTER TABLE tasks ADD COLUMN cores INTEGER",
        "ALTER TABLE tasks ADD COLUMN field_test TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE tasks ADD COLUMN arm TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE tasks ADD COLUMN chosen_task TEXT",
        "ALTER TABLE tasks ADD COLUMN chosen_tokens INTEGER",
        "ALTER TABLE tasks ADD COLUMN chosen_rows INTEGER",
        "ALTER TABLE tasks ADD COLUMN chosen_queue INTEGER",
        "ALTER TABLE tasks ADD COLUMN chosen_cores INTEGER",
        "ALTER TABLE tasks ADD COLUMN chosen_heat TEXT",
        "ALTER TABLE tasks ADD COLUMN chosen_clock_share REAL",
        "ALTER TABLE tasks ADD COLUMN chosen_memory TEXT",
        "ALTER TABLE tasks ADD COLUMN chosen_supply TEXT",
        "ALTER TABLE tasks ADD COLUMN chosen_prefix TEXT",
        """CREATE TABLE decisions (
            id INTEGER PRIMARY KEY,
            wall_s REAL NOT NULL,
            at_s REAL NOT NULL,
            boot INTEGER NOT NULL REFERENCES boots(id),
            strategy TEXT REFERENCES strategies(strategy_id),
            source TEXT NOT NULL,
            model TEXT NOT NULL,
            kind TEXT NOT NULL,
            part TEXT NOT NULL,
            key TEXT NOT NULL,
            from_id TEXT NOT NULL,
            to_id TEXT NOT NULL,
            what TEXT NOT NULL,
            reason TEXT NOT NULL,
            delay_s REAL NOT NULL,
            gain REAL NOT NULL,
            repeats INTEGER NOT NULL
        )""",
    ),
)
SCHEMA = len(STEPS)
# Tables of rows that come and go with time; each row names its boot, and may name a strategy.
DATED = ("tasks", "decisions")
LAST_ID = 2**63 - 1  # SQLite's largest


def _insert_into(table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 - names


_INSERT = _insert_into("tasks", _COLUMNS)
_INSERT_DECISION = _insert_into("decisions", _DECISION_COLUMNS)
_SELECT = (
    f"SELECT {', '.join(_COLUMNS)}, boot_id, facts, settings FROM tasks "  # noqa: S608 - names
    "JOIN boots ON boots.id = boot LEFT JOIN plans ON plan_id = plan LEFT JOIN strategies ON strategy_id = strategy"
)
_SELECT_DECISIONS = (
    f"SELECT {', '.join(_DECISION_COLUMNS)}, boot_id, settings FROM decisions "  # noqa: S608 - names
    "JOIN boots ON boots.id = boot LEFT JOIN strategies ON strategy_id = strategy"
)


class _Repeated:
    """What many rows name, written once: inside one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._boots: dict[str, int] = {}
        self._known: set[str] = set()

    def boot(self, boot_id: str) -> int:
        if boot_id not in self._boots:
            self._connection.execute("INSERT OR IGNORE INTO boots (boot_id) VALUES (?)", (boot_id,))
            (number,) = self._connection.execute("SELECT id FROM boots WHERE boot_id = ?", (boot_id,)).fetchone()
            self._boots[boot_id] = number
        return self._boots[boot_id]

    def plan(self, plan: PlanFacts | None) -> str | None:
        if plan is None:
            return None
        if plan.plan_id not in self._known:
            self._known.add(plan.plan_id)
            facts = msgspec.json.encode(plan).decode()
            self._connection.execute("INSERT OR IGNORE INTO plans VALUES (?, ?)", (plan.plan_id, facts))
        return plan.plan_id

    def strategy(self, strategy: Strategy | None) -> str | None:
        if strategy is None:
            return None
        if strategy.strategy_id not in self._known:
            self._known.add(strategy.strategy_id)
            settings = msgspec.json.encode(strategy, order="sorted").decode()
            self._connection.execute(
                "INSERT OR IGNORE INTO strategies VALUES (?, ?)", (strategy.strategy_id, settings)
            )
        return strategy.strategy_id


def insert(connection: sqlite3.Connection, rows: Iterable[TaskRow | DecisionRow]) -> None:
    """Add `rows` in their order, inside the caller's transaction."""
    repeated = _Repeated(connection)
    for row in rows:
        begin = [row.stamp.wall_s, row.stamp.at_s, repeated.boot(row.stamp.boot_id)]
        if isinstance(row, DecisionRow):
            values = [*begin, repeated.strategy(row.strategy), *(getattr(row, name) for name in _DECISION_FIELDS)]
            connection.execute(_INSERT_DECISION, values)
            continue
        met = row.circumstances
        in_force = repeated.strategy(met.strategy)
        values = [*begin, repeated.plan(met.plan), row.task.strategy or in_force]
        values += [getattr(row.task, name) for name in _TASK_COLUMNS]
        values += [getattr(met, name) for name in _CIRCUMSTANCE_COLUMNS]
        values += [getattr(met.chosen, name, None) for name in _CHOSEN]
        connection.execute(_INSERT, values)


def recent(
    connection: sqlite3.Connection, limit: int, outcomes: Sequence[Outcome] = (), up_to: int = LAST_ID
) -> list[TaskRow]:
    """The newest rows first, of all outcomes or those named."""
    if not outcomes:
        found = connection.execute(f"{_SELECT} WHERE tasks.id <= ? ORDER BY tasks.id DESC LIMIT ?", (up_to, limit))
    else:
        # Said again in words so that the planner sees that the index of failures holds them all.
        failures = "" if {"ok", "cancelled"} & set(outcomes) else "AND outcome NOT IN ('ok', 'cancelled')"
        marks = ", ".join("?" * len(outcomes))
        found = connection.execute(
            f"{_SELECT} WHERE tasks.id <= ? AND outcome IN ({marks}) {failures} ORDER BY tasks.id DESC LIMIT ?",
            (up_to, *outcomes, limit),
        )
    return [_row(values) for values in found.fetchall()]


def failures(connection: sqlite3.Connection, limit: int) -> list[TaskRow]:
    """The newest of the tasks that went wrong."""
    return recent(connection, limit, FAILURES)


def counts(connection: sqlite3.Connection, up_to: int = LAST_ID) -> dict[str, int]:
    """How many tasks ended in which way, of all that are kept."""
    return dict(
        connection.execute("SELECT outcome, count(*) FROM tasks WHERE id <= ? GROUP BY outcome", (up_to,)).fetchall()
    )


def probe(connection: sqlite3.Connection) -> None:
    """Read a row of each kind, whatever it says. Raises `sqlite3.Error` where columns are missing."""
    connection.execute(f"{_SELECT} LIMIT 1").fetchall()
    connection.execute(f"{_SELECT_DECISIONS} LIMIT 1").fetchall()


def last_ids(connection: sqlite3.Connection) -> dict[str, int]:
    """The newest row of each table of `DATED`; 0: it is empty."""
    return {
        table: connection.execute(f"SELECT ifnull(max(id), 0) FROM {table}").fetchone()[0]  # noqa: S608 - names
        for table in DATED
    }


def decisions(connection: sqlite3.Connection, up_to: int = LAST_ID, model: str = "") -> Iterator[DecisionRow]:
    """The newest first, as far as they are asked for; with `model` those about it, and those that concern all."""
    about = "AND decisions.model IN ('', ?)" if model else ""
    for values in connection.execute(
        f"{_SELECT_DECISIONS} WHERE decisions.id <= ? {about} ORDER BY decisions.id DESC",
        (up_to, model) if model else (up_to,),
    ):
        by_name: dict[str, Any] = dict(zip((*_DECISION_COLUMNS, "boot_id", "settings"), values, strict=True))
        fields = {name: by_name[name] for name in _DECISION_FIELDS}
        yield msgspec.convert(
            {**fields, "stamp": _stamp(by_name), "strategy": _strategy(by_name["settings"])}, DecisionRow
        )


def each(connection: sqlite3.Connection, up_to: int = LAST_ID, model: str = "") -> Iterator[TaskRow]:
    """Rows of all tasks, or those of `model`, the newest first, as far as they are asked for."""
    of = "AND tasks.model = ?" if model else ""
    for values in connection.execute(
        f"{_SELECT} WHERE tasks.id <= ? {of} ORDER BY tasks.id DESC", (up_to, model) if model else (up_to,)
    ):
        yield _row(values)


def _row(values: Sequence[Any]) -> TaskRow:
    by_name: dict[str, Any] = dict(zip((*_COLUMNS, "boot_id", "facts", "settings"), values, strict=True))
    facts, throttled = by_name["facts"], by_name["throttled"]
    chosen = {name: by_name[f"chosen_{name}"] for name in _CHOSEN}
    task = {name: by_name[name] for name in _TASK_COLUMNS}
    return TaskRow(
        stamp=_stamp(by_name),
        task=msgspec.convert({**task, "strategy": by_name["strategy"] or ""}, TaskRecord),
        circumstances=Circumstances(
            **{
                **{name: by_name[name] for name in _CIRCUMSTANCE_COLUMNS},
                "throttled": None if throttled is None else bool(throttled),
            },
            plan=msgspec.json.decode(facts, type=PlanFacts) if facts is not None else None,
            strategy=_strategy(by_name["settings"]),
            chosen=msgspec.convert(chosen, Situation) if chosen["task"] is not None else None,
        ),
    )


def _stamp(by_name: dict[str, Any]) -> Stamp:
    return Stamp(wall_s=by_name["wall_s"], at_s=by_name["at_s"], boot_id=by_name["boot_id"])


def _strategy(settings: str | None) -> Strategy | None:
    """None also for one of a version that had other settings: its id is known, and rows are read all the same."""
    try:
        return msgspec.json.decode(settings, type=Strategy) if settings is not None else None
    except msgspec.ValidationError:
        return None
