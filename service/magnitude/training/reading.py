"""Files of records, of one board or a fleet, as one Ibis table with the columns of `columns.COLUMNS`.

Parquet is read by the backend. A `records.db` is read with Python's own sqlite3: DuckDB's reader of SQLite is an
extension that it would download.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import ibis
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from magnitude.errors import MagnitudeError
from magnitude.training.columns import COLUMNS, REQUIRED
from magnitude.training.record_db import is_record_db, read_record_db

if TYPE_CHECKING:
    import ibis.expr.types as ir
    from ibis.backends.duckdb import Backend

_PARQUET = b"PAR1"
_ARROW = {
    "string": pa.string(),
    "int64": pa.int64(),
    "float64": pa.float64(),
}
SCHEMA = pa.schema([(name, _ARROW[kind]) for name, kind in COLUMNS.items()])


class NothingToRead(MagnitudeError):
    """None of the files holds records that can be learned from."""

    code = "training_refused"
    permanent = True


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was left out, why, and what to do about it."""

    path: str
    why: str
    hint: str


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """All records that could be read, as `table` on `backend`, and what could not. `files`: how many of them."""

    backend: Any
    table: Any
    files: int
    skipped: tuple[Skipped, ...]


def read_records(paths: Sequence[Path], *, board: str = "") -> Records:
    """Open every file, and every `*.db` and `*.parquet` in and below a folder. `board` is the name for records that
    do not say of which board they are. Raises `NothingToRead`.

    A file that cannot be used is skipped and told; one page of it that is torn is enough.
    """
    backend = cast("Backend", ibis.duckdb.connect())
    skipped: list[Skipped] = []
    tables: list[ir.Table] = []
    files = 0
    by_schema: dict[str, list[Path]] = {}
    for path in _files(paths, skipped):
        try:
            if is_record_db(path):
                tables.append(ibis.memtable(read_record_db(path, SCHEMA)))
                files += 1
            elif _begins(path) == _PARQUET:
                by_schema.setdefault(_schema_of(path), []).append(path)
            else:
                raise _Unreadable("it is neither SQLite nor Parquet", "Give a records.db or Parquet files of records")
        except _Unreadable as error:
            skipped.append(Skipped(path=str(path), why=error.why, hint=error.hint))
        except (MagnitudeError, OSError, pa.ArrowException) as error:
            skipped.append(_skipped(path, error))
    for group in by_schema.values():
        sound = _sound(backend, group, skipped)
        files += len(sound)
        if sound:
            tables.append(_flat(backend.read_parquet([str(path) for path in sound])))
    if not tables:
        raise NothingToRead(
            "no records could be read" + "".join(f"; {item.path}: {item.why}" for item in skipped),
            hint=skipped[0].hint if skipped else "Give records.db files of services, or a fleet's Parquet files",
        )
    table = functools.reduce(lambda left, right: left.union(right), tables)
    if board:
        table = table.mutate(board=(table.board.fill_null("") == "").ifelse(board, table.board))
    return Records(backend=backend, table=table, files=files, skipped=tuple(skipped))


def export_parquet(records: Records, path: Path) -> int:
    """Write all of it into one Parquet file, for a fleet to collect; the number of rows. Raises `MagnitudeError`."""
    import duckdb

    try:
        records.backend.to_parquet(records.table, path, compression="zstd")
    except (duckdb.Error, OSError) as error:
        raise MagnitudeError(
            f"{path} cannot be written: {_reason(error)}", hint="Name a file in a folder that you may write"
        ) from error
    return int(pq.read_metadata(path).num_rows)


class _Unreadable(Exception):
    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint


def _files(paths: Iterable[Path], skipped: list[Skipped]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for ending in ("db", "parquet") for file in path.rglob(f"*.{ending}"))
            if not inside:
                hint = "Name the folder in which records.db or Parquet files lie"
                skipped.append(Skipped(path=str(path), why="no *.db and no *.parquet lies in it", hint=hint))
            found += inside
        elif path.exists():
            found.append(path)
        else:
            skipped.append(Skipped(path=str(path), why="there is no such file", hint="Check the name"))
    # The same file given twice, once by its folder, must not count twice.
    return list({file.resolve(): file for file in found}.values())


def _begins(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(_PARQUET))


def _schema_of(path: Path) -> str:
    """What tells files with other columns apart. Raises `_Unreadable` for one that lacks what is needed."""
    schema = pq.read_schema(path)
    missing = [name for name in REQUIRED if name not in schema.names]
    if missing:
        raise _Unreadable(
            f"it has no column {', '.join(missing)}", "Export records with `magnitude strategy train --export FILE`"
        )
    return "\n".join(f"{field.name} {field.type}" for field in schema if field.name in COLUMNS)


def _sound(backend: Backend, paths: list[Path], skipped: list[Skipped]) -> list[Path]:
    """Those whose pages can be read: the footer alone says nothing about them. Asked of all at once, and one by one
    only where that fails."""
    if _fault(backend, paths) is None:
        return paths
    sound = []
    for path in paths:
        error = _fault(backend, [path])
        if error is None:
            sound.append(path)
        else:
            skipped.append(_skipped(path, error))
    return sound


def _fault(backend: Backend, paths: list[Path]) -> Exception | None:
    import duckdb

    try:
        table = _flat(backend.read_parquet([str(path) for path in paths]))
        # A checksum of sorts: every value of every column has to be decoded for it.
        backend.to_pyarrow(table.agg(**{name: table[name].cast("string").length().sum() for name in table.columns}))
    except (duckdb.Error, OSError) as error:
        return error
    return None


def _flat(table: ir.Table) -> ir.Table:
    """With all columns, in their order and types; those that are missing are null."""
    return table.select(
        **{
            name: table[name].try_cast(kind) if name in table.columns else ibis.null(kind)
            for name, kind in COLUMNS.items()
        }
    )


def _skipped(path: Path, error: Exception) -> Skipped:
    if isinstance(error, MagnitudeError):
        return Skipped(path=str(path), why=error.message, hint=error.hint)
    return Skipped(path=str(path), why=_reason(error), hint="Copy the file anew, or leave it out")


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or str(error).strip().splitlines()[0])
