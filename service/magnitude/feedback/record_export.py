"""Records in one file of their own, to be taken elsewhere: a database, or a line of JSON a task."""

from __future__ import annotations

from pathlib import Path

import msgspec

from magnitude.errors import ConfigError
from magnitude.feedback import record_table
from magnitude.feedback.record_file import reading

# A copy of the whole database, for `magnitude strategy train` and everything that reads SQLite; tasks alone as lines.
KINDS = (".db", ".jsonl")


def export(records: Path, target: Path) -> int:
    """Write what is in `records` to `target`, whose name says how, also beside a service that writes; how many tasks.

    Raises `ConfigError` for another kind of file, one that is there already, or a folder that cannot be written to,
    and `StorageRefuses` where there are no records.
    """
    if target.suffix not in KINDS:
        raise ConfigError(
            f"{target} is no kind of export that is known",
            hint=f"Let it end in {' or '.join(KINDS)}",
            param="--export",
        )
    import sqlite3

    with reading(records) as connection:
        try:
            # Not over what is there: it may be the only copy of another board's records.
            file = target.open("xb")
        except FileExistsError as error:
            raise ConfigError(f"{target} is there already", hint="Name another file", param="--export") from error
        except OSError as error:
            raise ConfigError(f"{target} cannot be written: {error.strerror}", param="--export") from error
        try:
            with file:
                if target.suffix == ".jsonl":
                    count = 0
                    for row in record_table.each(connection):
                        file.write(msgspec.json.encode(row) + b"\n")
                        count += 1
                    return count
            # Into the empty file: one snapshot of the database, without its log.
            connection.execute("VACUUM INTO ?", (str(target),))
            return sum(record_table.counts(connection).values())
        except (OSError, sqlite3.Error) as error:
            target.unlink(missing_ok=True)
            raise ConfigError(
                f"{target} cannot be written: {error}", hint="Name another file", param="--export"
            ) from error
