"""One `records.db` as flat rows."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from magnitude.errors import MagnitudeError
from magnitude.feedback.record_table import APPLICATION_ID

_SQLITE = b"SQLite format 3\0"
# What stands in `tasks` under the name that it has here.
_TASKS = (
    "model",
    "wall_s",
    "kind",
    "outcome",
    "code",
    "prompt_tokens",
    "cached_tokens",
    "new_tokens",
    "prefill_s",
    "decode_s",
    "batch",
    "strategy",
)
# The situation that a strategy was chosen for.
_CHOSEN = ("rows", "tokens", "cores", "clock_share", "heat", "memory", "supply")
# Rows that are turned into columns at once: enough to be quick, few enough not to need much beside the result.
_AT_ONCE = 20_000


class RecordsUnusable(MagnitudeError):
    """A database that is broken, not ours, or from before strategies were recorded. The message says why."""

    code = "training_refused"
    permanent = True


class _Served(msgspec.Struct, frozen=True):
    """Of a plan's facts (`feedback.circumstances.PlanFacts`, of any version) what is needed here."""

    model_hash: str = ""
    board: str = ""
    ort_version: str = ""
    weight_bytes: int = 0
    threads: int | None = None
    graph_file: str = ""
    prefill_chunk_tokens: int | None = None


def is_record_db(path: Path) -> bool:
    """Whether it is an SQLite file. Raises `OSError`."""
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def read_record_db(path: Path, schema: pa.Schema) -> pa.Table:
    """All rows that name a strategy, in the columns of `schema`. Raises `RecordsUnusable`.

    The file may be a copy without its log, or one that a service writes at this moment: nothing is changed, and
    nothing is left beside it."""
    followed = path.with_name(path.name + "-wal").exists()
    why = ""
    for options in ("mode=ro", "mode=ro&immutable=1") if followed else ("mode=ro&immutable=1",):
        try:
            with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True)) as connection:
                return _read(connection, schema)
        except sqlite3.Error as error:
            why = str(error)
    raise RecordsUnusable(f"it cannot be read: {why}", hint="Copy it anew (with its -wal file), or leave it out")


def _read(connection: sqlite3.Connection, schema: pa.Schema) -> pa.Table:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise RecordsUnusable("it is a database, but not one of records", hint="Give records.db of a state folder")
    columns = {row[1] for row in connection.execute("PRAGMA table_info(tasks)")}
    if "strategy" not in columns:
        raise RecordsUnusable(
            "it is from before strategies were recorded", hint="Let the service of this version run, and take it then"
        )
    plans = {
        plan: _served(facts) for plan, facts in connection.execute("SELECT plan_id, facts FROM plans").fetchall()
    }
    settings = dict(connection.execute("SELECT strategy_id, settings FROM strategies").fetchall())
    names = [*_TASKS, *_CHOSEN, "plan"]
    # What the board was seen at stands for what was looked at when choosing, where nobody chose.
    asked = [*_TASKS, *(_asked(name) for name in _CHOSEN), "plan"]
    batches: list[pa.RecordBatch] = []
    rows = connection.execute(
        f"SELECT {', '.join(asked)} FROM tasks WHERE strategy IS NOT NULL ORDER BY id"  # noqa: S608 - our names
    )
    while found := rows.fetchmany(_AT_ONCE):
        values = dict(zip(names, zip(*found, strict=True), strict=True))
        served = [plans.get(plan, _Served()) for plan in values["plan"]]
        flat: dict[str, Any] = {name: values[name] for name in (*_TASKS, *_CHOSEN)}
        flat |= {
            "settings": [settings.get(strategy) for strategy in values["strategy"]],
            "board": [plan.board or None for plan in served],
            "model_hash": [plan.model_hash or None for plan in served],
            "ort_version": [plan.ort_version or None for plan in served],
            "weight_bytes": [plan.weight_bytes or None for plan in served],
            "own_threads": [plan.threads for plan in served],
            "own_graph": [plan.graph_file for plan in served],
            "own_chunk": [plan.prefill_chunk_tokens for plan in served],
        }
        missing = [None] * len(found)
        arrays = [pa.array(flat.get(field.name, missing), field.type) for field in schema]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return pa.Table.from_batches(batches, schema=schema)


def _asked(name: str) -> str:
    return f"COALESCE(chosen_{name}, {name})" if name in ("cores", "clock_share") else f"chosen_{name}"


def _served(facts: str) -> _Served:
    try:
        return msgspec.json.decode(facts, type=_Served)
    except msgspec.MsgspecError:
        return _Served()
