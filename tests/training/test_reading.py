"""Files of records: what can be read is, and what cannot is named with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ibis
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from simulated_fleet import rows_of, strategy, table_of

from magnitude.errors import MagnitudeError
from magnitude.training.columns import COLUMNS, REQUIRED
from magnitude.training.reading import NothingToRead, Records, export_parquet, read_records

ROWS = rows_of("pi5-bare", [strategy(2), strategy(4)], tasks=40)


def _write(path: Path, rows: list[dict[str, Any]] = ROWS, without: tuple[str, ...] = ()) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table_of(rows).drop_columns(list(without)), path)
    return path


def _count(records: Records) -> int:
    return int(records.backend.to_pyarrow(records.table.count()).as_py())


def _column(records: Records, name: str) -> list[Any]:
    return list(records.backend.to_pyarrow(records.table.select(name)).to_pydict()[name])


def test_a_folder_is_read_with_all_that_lies_below_it(tmp_path: Path) -> None:
    _write(tmp_path / "a.parquet")
    _write(tmp_path / "deep" / "er" / "b.parquet")
    (tmp_path / "notes.txt").write_text("not records")
    records = read_records([tmp_path])
    assert (_count(records), records.files, records.skipped) == (80, 2, ())


def test_a_file_given_twice_counts_once(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.parquet")
    assert _count(read_records([path, tmp_path, path])) == len(ROWS)


def test_files_with_other_columns_are_read_together(tmp_path: Path) -> None:
    _write(tmp_path / "new.parquet")
    _write(tmp_path / "old.parquet", without=tuple(name for name in COLUMNS if name not in REQUIRED))
    further = table_of(ROWS).append_column("moon", pa.array(["full"] * len(ROWS)))
    pq.write_table(further, tmp_path / "more.parquet")
    records = read_records([tmp_path])
    assert (_count(records), records.skipped) == (3 * len(ROWS), ())
    assert _column(records, "board").count(None) == len(ROWS)


def test_numbers_of_another_width_are_taken(tmp_path: Path) -> None:
    table = table_of(ROWS)
    for name in ("prompt_tokens", "new_tokens"):
        table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.int32()))
    pq.write_table(table, tmp_path / "a.parquet")
    assert _column(read_records([tmp_path]), "prompt_tokens") == [row["prompt_tokens"] for row in ROWS]


def test_records_that_name_no_board_get_the_one_that_is_given(tmp_path: Path) -> None:
    _write(tmp_path / "named.parquet")
    _write(tmp_path / "unnamed.parquet", without=("board",))
    records = read_records([tmp_path], board="attic")
    assert sorted(set(_column(records, "board"))) == ["attic", "pi5-bare"]


def _torn_page(path: Path) -> None:
    """Garbage in the middle, between a sound beginning and a sound footer."""
    data = bytearray(path.read_bytes())
    for at in range(4, len(data) - pq.read_metadata(path).serialized_size - 8):
        data[at] ^= 0x5A
    path.write_bytes(bytes(data))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _not_records(path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), path)


def _other_kind(path: Path) -> None:
    path.write_text("kind,model\ngenerate,chat\n")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("break_it", [_torn_page, _cut, _not_records, _other_kind, _empty])
def test_a_file_that_cannot_be_read_is_named_and_the_others_go_on(tmp_path: Path, break_it: Any) -> None:
    _write(tmp_path / "good.parquet")
    bad = _write(tmp_path / "bad.parquet")
    break_it(bad)
    records = read_records([tmp_path])
    assert (_count(records), records.files) == (len(ROWS), 1)
    (skipped,) = records.skipped
    assert skipped.path == str(bad)
    assert skipped.why
    assert skipped.hint


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    records = read_records([_write(tmp_path / "a.parquet"), tmp_path / "b.parquet"])
    assert [one.why for one in records.skipped] == ["there is no such file"]


def test_nothing_that_can_be_read_is_an_error_that_names_every_file(tmp_path: Path) -> None:
    _other_kind(tmp_path / "a.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NothingToRead, match=r"empty: no .*parquet: it is neither SQLite nor Parquet") as raised:
        read_records([tmp_path / "a.parquet", tmp_path / "empty"])
    assert raised.value.hint


def test_what_is_exported_reads_the_same(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    records = read_records([_write(tmp_path / "in" / "a.parquet", without=("board",))], board="attic")
    assert export_parquet(records, tmp_path / "out.parquet") == len(ROWS)
    again = read_records([tmp_path / "out.parquet"])
    assert again.backend.to_pyarrow(again.table).equals(records.backend.to_pyarrow(records.table))
    assert set(_column(again, "board")) == {"attic"}


def test_an_export_that_cannot_be_written_is_an_error_with_a_hint(tmp_path: Path) -> None:
    records = read_records([_write(tmp_path / "a.parquet")])
    with pytest.raises(MagnitudeError, match="cannot be written") as raised:
        export_parquet(records, tmp_path / "none" / "out.parquet")
    assert raised.value.hint


def test_columns_keep_their_types_on_the_way(tmp_path: Path) -> None:
    records = read_records([_write(tmp_path / "a.parquet")])
    assert dict(records.table.schema().items()) == {name: ibis.dtype(kind) for name, kind in COLUMNS.items()}
