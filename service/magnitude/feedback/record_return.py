"""Records that an older version has set aside, taken up again when this version comes back.

A system update that is taken back and installed again leaves two databases: the one that this version wrote, which
the older one could not read, and the one that the older one has begun meanwhile. The former counts again, and what
stands in the latter is added to it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from magnitude.feedback.record_table import DATED, SCHEMA
from magnitude.persist import sync_folder

if TYPE_CHECKING:
    import sqlite3

# SQLite's own files beside a database.
COMPANIONS = ("-wal", "-shm")
# What is looked up by its own key and said once: the same in both.
_SHARED = ("plans", "strategies")


def interim_of(path: Path) -> Path:
    """Where the rows lie that are still to be added to the database `path`."""
    return path.with_name(path.name + ".interim")


def change_places(path: Path) -> None:
    """Let the database of this version that waits beside `path` take its place, and keep what was there for
    `take_in`. After a power cut between the two steps the second one is made up for. Raises `OSError`."""
    waiting = path.with_name(f"{path.name}.schema-{SCHEMA}-1")
    if not waiting.exists():
        return
    if path.exists() and not interim_of(path).exists():
        _move(path, interim_of(path))
    if not path.exists():
        _move(waiting, path)
    sync_folder(path.parent)


def take_in(connection: sqlite3.Connection, interim: Path) -> int:
    """Add the rows of the database `interim`, which has our schema, in one transaction; how many. Raises
    `sqlite3.Error`; nothing was added then."""
    connection.execute("ATTACH ? AS interim", (str(interim),))
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute("INSERT OR IGNORE INTO main.boots (boot_id) SELECT boot_id FROM interim.boots")
            for table in _SHARED:
                names = ", ".join(_columns(connection, table))
                connection.execute(
                    f"INSERT OR IGNORE INTO main.{table} ({names}) SELECT {names} FROM interim.{table}"  # noqa: S608
                )
            added = sum(_copy(connection, table) for table in DATED)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(Exception):
                connection.execute("ROLLBACK")
            raise
    finally:
        connection.execute("DETACH interim")
    return added


def forget(interim: Path) -> None:
    """Its rows have been added. Raises `OSError`."""
    for path in (interim, *(interim.with_name(interim.name + ending) for ending in COMPANIONS)):
        path.unlink(missing_ok=True)


def _copy(connection: sqlite3.Connection, table: str) -> int:
    names = ", ".join(name for name in _columns(connection, table) if name not in ("id", "boot"))
    boot = (
        "(SELECT ours.id FROM main.boots AS ours JOIN interim.boots AS theirs USING (boot_id) "
        "WHERE theirs.id = rows.boot)"
    )
    return connection.execute(
        f"INSERT INTO main.{table} (boot, {names}) SELECT {boot}, {names} FROM interim.{table} AS rows "  # noqa: S608
        "ORDER BY rows.id"
    ).rowcount


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [str(row[1]) for row in connection.execute(f"PRAGMA main.table_info({table})")]


def _move(path: Path, target: Path) -> None:
    for ending in COMPANIONS:
        companion = path.with_name(path.name + ending)
        if companion.exists():
            companion.replace(target.with_name(target.name + ending))
    path.replace(target)
