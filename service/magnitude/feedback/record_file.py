"""`records.db`: the file with the rows of tasks and decisions, bounded in size, and set aside when it cannot be used.

SQLite in WAL mode: one transaction is one sequential write and one fsync, and after a crash or a power cut at any
moment the file holds every transaction that was reported committed, and nothing of the others. A file that is broken,
somebody else's or of a newer version is moved out of the way (`records.db.broken-1`, `records.db.schema-N-1`; two of
a kind are kept) with one line in the log, and a new one is begun. A version that comes back takes its own up again
(`record_return.py`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from magnitude.board.boot import EARLIEST_S, Stamp
from magnitude.board.storage import free_bytes
from magnitude.errors import MagnitudeError
from magnitude.feedback import record_return, record_table
from magnitude.feedback.decisions import DecisionRow
from magnitude.feedback.record_return import COMPANIONS
from magnitude.feedback.record_table import APPLICATION_ID, DATED, SCHEMA, STEPS
from magnitude.feedback.records import TaskRow
from magnitude.persist import set_aside, sync_folder

if TYPE_CHECKING:
    import sqlite3

log = logging.getLogger(__name__)

DAY_S = 86400.0
# How much everybody does is not everybody's business. SQLite's own files get the mode of the database.
MODE = 0o640
# The log that precedes the database: so large at most, and cut to this after a checkpoint. It counts as ours, too.
WAL_BYTES = 1 << 20
# Beyond the limit so many of the oldest rows go at once: each time costs a transaction's worth of pages, one row at
# a time would touch them with every task.
PRUNED_SHARE = 0.1
# 64 pages of 4 KiB; SQLite's default of 2 MB is as much as all of our rows of a day.
CACHE_KIB = 256
BUSY_MS = 5000  # somebody looks at the file with a tool of their own
# From <sqlite3.h>, the low byte of an error code: what says that the file, not the storage, is at fault.
_BROKEN = frozenset({1, 11, 26})  # SQLITE_ERROR (a table or column is missing), SQLITE_CORRUPT, SQLITE_NOTADB


class StorageRefuses(MagnitudeError):
    """Nothing can be written down now. The message says why, for people; it may be tried again later."""

    code = "records_not_kept"


class FileBroken(Exception):
    """The content of the file is not what it should be."""


class RecordLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`max_bytes` counts the database, `max_rows` its tasks and `max_decisions` its decisions; `reserve_bytes` of the
    disk stay free."""

    max_bytes: int = 16 * 1024 * 1024
    max_rows: int = 200_000
    # Two days of a board that is hot all day, at the six changes of clocks that its governor may decide on in a
    # minute; a row takes 230 bytes.
    max_decisions: int = 20_000
    keep_s: float = 30 * DAY_S
    reserve_bytes: int = 64 * 1024 * 1024


class RecordFile:
    """The open file. Not thread-safe: one thread opens, uses and closes it."""

    def __init__(self, path: Path, limits: RecordLimits) -> None:
        """Open it, make it or begin it anew. Raises `StorageRefuses`."""
        self.path = path
        self._limits = limits
        with _storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            record_return.change_places(path)
            self._connection = self._opened()
            self._take_in_interim()
            status = path.stat()
            self._identity = (status.st_dev, status.st_ino)

    def append(self, rows: Sequence[TaskRow | DecisionRow]) -> None:
        """Write `rows` in one transaction; they are on the disk when this returns. Makes room first.

        Raises `StorageRefuses`, and `FileBroken` when the file has to be opened anew.
        """
        with _storage_errors(self.path):
            self._check_room()
            with self._transaction() as connection:
                decisions = sum(isinstance(row, DecisionRow) for row in rows)
                self._make_room(connection, {"tasks": len(rows) - decisions, "decisions": decisions})
                record_table.insert(connection, rows)
            self._shrink()

    def prune(self, now: Stamp) -> int:
        """Remove what is older than the limit; how many rows. Raises as `append` does.

        Only stamps that can be right count: one from before the clock was set, or from the future, ages by its
        place among the others. At most a tenth of the rows go at once, so that a clock that is wrong for a moment
        does not empty the file.
        """
        latest_s = now.wall_s - self._limits.keep_s
        with _storage_errors(self.path):
            old = {table: self._older(table, latest_s) for table in DATED}
            if not any(old.values()):
                return 0
            with self._transaction() as connection:
                for table, ids in old.items():
                    connection.executemany(f"DELETE FROM {table} WHERE id = ?", ids)  # noqa: S608 - a name of ours
                connection.execute(
                    "DELETE FROM plans WHERE plan_id NOT IN (SELECT plan FROM tasks WHERE plan NOT NULL)"
                )
                connection.execute(
                    "DELETE FROM strategies WHERE strategy_id NOT IN (SELECT strategy FROM tasks WHERE strategy "
                    "NOT NULL UNION SELECT strategy FROM decisions WHERE strategy NOT NULL)"
                )
                connection.execute(
                    "DELETE FROM boots WHERE id NOT IN (SELECT boot FROM tasks UNION SELECT boot FROM decisions)"
                )
            self._shrink()
            return sum(map(len, old.values()))

    def last_ids(self) -> dict[str, int]:
        """The newest row of each table. Raises as `append` does."""
        with _storage_errors(self.path), _file_errors():
            return record_table.last_ids(self._connection)

    @property
    def in_place(self) -> bool:
        """Whether it is still the file of that name: somebody may have moved or removed it."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def close(self) -> None:
        """Merges the log into the file. Never raises."""
        with suppress(Exception):
            self._connection.close()

    # --- inside ---

    def _opened(self) -> sqlite3.Connection:
        for last_try in (False, True):
            present = self.path.exists()
            if not present:
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE))
            connection = _connect(self.path)
            try:
                if present and not self.path.stat().st_size:
                    raise FileBroken("it is empty")
                self._set_up(connection, fresh=not present)
                return connection
            except FileBroken as why:
                connection.close()
                if last_try:
                    raise StorageRefuses(f"{self.path} cannot be made anew: {why}") from why
                self._put_away(str(why), "broken")
            except _Newer as why:
                connection.close()
                self._put_away(str(why), f"schema-{why.schema}")
            except BaseException:
                connection.close()
                raise
        raise AssertionError("the second try returns or raises")

    def _take_in_interim(self) -> None:
        """Add what an older version has recorded while this one was away."""
        interim = record_return.interim_of(self.path)
        if not interim.exists():
            return
        try:
            with closing(_connect(interim)) as connection:
                self._set_up(connection, fresh=False)
            with _file_errors():
                added = record_return.take_in(self._connection, interim)
        except (FileBroken, _Newer) as why:
            kept = set_aside(interim, as_name=self.path.name, companions=COMPANIONS)
            log.warning("records are left out", extra={"fields": {"why": str(why), "kept_as": kept}})
            return
        record_return.forget(interim)
        log.info("records of this version are taken up again", extra={"fields": {"rows_added": added}})

    def _put_away(self, why: str, label: str) -> None:
        kept = set_aside(self.path, label=label, companions=COMPANIONS)
        if not kept:
            raise StorageRefuses(f"{self.path} is not usable ({why}) and cannot be moved")
        log.warning(
            "the records are not usable and were set aside",
            extra={"fields": {"file": str(self.path), "why": why, "kept_as": kept}},
        )

    def _set_up(self, connection: sqlite3.Connection, *, fresh: bool) -> None:
        with _file_errors():
            if fresh:
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only before the first table
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            schema = _pragma(connection, "user_version")
            if not fresh and _pragma(connection, "application_id") != APPLICATION_ID:
                raise FileBroken("it is a database of another program")
            if schema > SCHEMA:
                raise _Newer(schema)
            if not fresh:
                (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                if verdict != "ok":
                    raise FileBroken(str(verdict))
            connection.execute("PRAGMA journal_mode = WAL")
            # FULL syncs the log at each commit. NORMAL would lose the last ones in a power cut, and save nothing at
            # one commit a minute.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            # Also shows that it can be written: SQLite opens a file on read-only storage without a word.
            connection.execute("BEGIN IMMEDIATE")
            for step in STEPS[schema:]:
                for statement in step:
                    connection.execute(statement)
            if schema < SCHEMA:
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
            connection.execute("COMMIT")
            record_table.probe(connection)  # the columns are those that we know
        if fresh:
            sync_folder(self.path.parent)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with _file_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(Exception):  # after some errors SQLite has rolled back by itself
                    self._connection.execute("ROLLBACK")
                raise

    def _rows(self, table: str) -> int:
        """At most so many: ids grow by one, and mostly the oldest go."""
        first, last = self._connection.execute(f"SELECT min(id), max(id) FROM {table}").fetchone()  # noqa: S608
        return last - first + 1 if last is not None else 0

    def _older(self, table: str, latest_s: float) -> list[tuple[int]]:
        most = max(1, int(self._rows(table) * PRUNED_SHARE))
        return self._connection.execute(
            f"SELECT id FROM {table} WHERE wall_s BETWEEN ? AND ? ORDER BY id LIMIT ?",  # noqa: S608 - a name of ours
            (EARLIEST_S, latest_s, most),
        ).fetchall()

    def _make_room(self, connection: sqlite3.Connection, coming: Mapping[str, int]) -> None:
        limits = {"tasks": self._limits.max_rows, "decisions": self._limits.max_decisions}
        rows = {table: self._rows(table) for table in DATED}
        used_pages = _pragma(connection, "page_count") - _pragma(connection, "freelist_count")
        used_bytes = used_pages * _pragma(connection, "page_size")
        kept = sum(rows.values())
        # Rows are alike, so what is coming needs as much as what is there, row by row.
        expected_bytes = used_bytes + sum(coming.values()) * (used_bytes // kept if kept else 0)
        full = expected_bytes > self._limits.max_bytes
        for table in DATED:
            surplus = max(rows[table] + coming[table] - limits[table], 0)
            if full or surplus:
                connection.execute(
                    f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} ORDER BY id LIMIT ?)",  # noqa: S608
                    (max(surplus, int(rows[table] * PRUNED_SHARE), min(coming[table], rows[table])),),
                )

    def _shrink(self) -> None:
        """Give pages back that the file does not need below its limit."""
        page_bytes = _pragma(self._connection, "page_size")
        surplus = _pragma(self._connection, "page_count") - self._limits.max_bytes // page_bytes
        if surplus > 0:
            # Not `execute`: it takes one step of a statement without columns, which frees one page.
            self._connection.executescript(f"PRAGMA incremental_vacuum({surplus})")

    def _check_room(self) -> None:
        free = free_bytes(self.path.parent)
        if free < self._limits.reserve_bytes:
            raise StorageRefuses(f"only {free >> 20} MiB are free, {self._limits.reserve_bytes >> 20} stay reserved")


class _Newer(Exception):
    def __init__(self, schema: int) -> None:
        super().__init__(f"its schema is {schema}, this version reads up to {SCHEMA}")
        self.schema = schema


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that only reads, beside a service that writes or without one. Raises `StorageRefuses`."""
    import sqlite3

    if not path.exists():
        raise StorageRefuses(f"there is no {path}", hint="Nothing was recorded yet, or records.max_bytes is 0")
    uri = path.absolute().as_uri()
    connection: sqlite3.Connection | None = None
    schema = SCHEMA
    # Without a log nobody is writing, and a plain read leaves no files behind. With one it has to be followed, for
    # which SQLite needs an index beside it; where that cannot be made, the log is left out.
    followed = path.with_name(path.name + "-wal").exists()
    for options in ("mode=ro", "mode=ro&immutable=1") if followed else ("mode=ro&immutable=1",):
        connection = sqlite3.connect(f"{uri}?{options}", uri=True, isolation_level=None)
        try:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            schema = _pragma(connection, "user_version")
            record_table.probe(connection)
            break
        except sqlite3.Error as error:
            connection.close()
            why = error
    else:
        if schema < SCHEMA:
            raise StorageRefuses(
                f"{path} is of an earlier version: {why}",
                hint="Start the service once: it brings the file up to date",
            )
        raise StorageRefuses(f"{path} cannot be read: {why}", hint="Ask as the service's user, or with sudo")
    try:
        yield connection
    finally:
        connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    import sqlite3

    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    return connection


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)


@contextmanager
def _file_errors() -> Iterator[None]:
    """Errors that say that the file is at fault become `FileBroken`."""
    import sqlite3

    try:
        yield
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF in _BROKEN:
            raise FileBroken(str(error)) from error
        raise


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """What is left becomes `StorageRefuses`: the storage, or a Python that comes without SQLite."""
    try:
        import sqlite3
    except ImportError as error:
        raise StorageRefuses("this Python has no sqlite3", hint="Install its package (python3-sqlite3)") from error
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StorageRefuses(f"{path} cannot be written: {reason}") from error
