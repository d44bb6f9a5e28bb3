"""`records.db` as the service writes it, read for training."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from simulated_fleet import rows_of, strategy, table_of

from magnitude.board.boot import Stamp
from magnitude.feedback.circumstances import Circumstances, PlanFacts
from magnitude.feedback.record_file import RecordFile, RecordLimits
from magnitude.feedback.records import TaskRecord, TaskRow
from magnitude.policy.situation import Situation
from magnitude.policy.strategy import Strategy
from magnitude.training.reading import SCHEMA, read_records
from magnitude.training.record_db import RecordsUnusable, read_record_db

ROWS = rows_of("pi5-bare", [strategy(2), strategy(4, 4, 64)], tasks=60)


def task_row(flat: dict[str, Any]) -> TaskRow:
    """The row that the service would have kept."""
    plan = PlanFacts(
        model=flat["model"],
        model_hash=flat["model_hash"],
        graph_file=flat["own_graph"],
        threads=flat["own_threads"],
        max_batch=4,
        prefill_chunk_tokens=flat["own_chunk"],
        board=flat["board"],
        ort_version=flat["ort_version"],
        weight_bytes=flat["weight_bytes"],
    )
    names = ("tokens", "rows", "cores", "clock_share", "heat", "memory", "supply")
    return TaskRow(
        stamp=Stamp(wall_s=flat["wall_s"], at_s=0.0, boot_id="boot"),
        task=TaskRecord(
            **{name: flat[name] for name in TaskRecord.__struct_fields__ if name in flat and name != "strategy"}
        ),
        circumstances=Circumstances(
            plan=plan,
            strategy=msgspec.json.decode(flat["settings"], type=Strategy),
            chosen=Situation(task=flat["kind"], **{name: flat[name] for name in names}),
        ),
    )


def write(path: Path, rows: list[TaskRow]) -> Path:
    file = RecordFile(path, RecordLimits(reserve_bytes=0))
    file.append(rows)
    file.close()
    return path


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return write(tmp_path / "records.db", [task_row(flat) for flat in ROWS])


def test_what_the_service_kept_comes_out_whole(database: Path) -> None:
    found = read_record_db(database, SCHEMA).to_pylist()
    for row, expected in zip(found, table_of(ROWS).to_pylist(), strict=True):
        settings = msgspec.json.decode(row.pop("settings"), type=Strategy)
        assert settings == msgspec.json.decode(expected.pop("settings"), type=Strategy)
        assert row == expected


def test_reading_leaves_nothing_beside_the_file_and_changes_nothing(database: Path) -> None:
    before = database.read_bytes()
    read_records([database])
    assert database.read_bytes() == before
    assert sorted(path.name for path in database.parent.iterdir()) == ["records.db"]


def test_rows_that_are_still_in_the_log_of_a_running_service_are_read(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "records.db", RecordLimits(reserve_bytes=0))
    try:
        file.append([task_row(flat) for flat in ROWS])
        assert (tmp_path / "records.db-wal").stat().st_size > 0
        assert read_record_db(tmp_path / "records.db", SCHEMA).num_rows == len(ROWS)
    finally:
        file.close()


def test_tasks_without_a_strategy_are_left_out(tmp_path: Path) -> None:
    plain = msgspec.structs.replace(task_row(ROWS[0]), circumstances=Circumstances())
    path = write(tmp_path / "records.db", [plain, *(task_row(flat) for flat in ROWS[1:])])
    assert read_record_db(path, SCHEMA).num_rows == len(ROWS) - 1


def test_where_nobody_chose_the_board_stands_as_it_was_seen(tmp_path: Path) -> None:
    row = task_row(ROWS[0])
    seen = msgspec.structs.replace(row.circumstances, chosen=None, cores=3, clock_share=0.7)
    path = write(tmp_path / "records.db", [msgspec.structs.replace(row, circumstances=seen)])
    (found,) = read_record_db(path, SCHEMA).to_pylist()
    assert (found["cores"], found["clock_share"], found["tokens"], found["heat"]) == (3, 0.7, None, None)


def test_databases_and_parquet_are_learned_from_together(database: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table_of(ROWS), tmp_path / "others.parquet")
    records = read_records([tmp_path])
    assert records.backend.to_pyarrow(records.table.count()).as_py() == 2 * len(ROWS)
    assert (records.files, records.skipped) == (2, ())


def _truncated(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _scribbled(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(bytes(data))


def _before_strategies(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE tasks DROP COLUMN strategy")


def _somebody_elses(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE tasks (strategy TEXT)")


@pytest.mark.parametrize("break_it", [_truncated, _scribbled, _before_strategies, _somebody_elses])
def test_a_database_that_cannot_be_used_is_refused_with_a_hint(
    database: Path, break_it: Callable[[Path], None]
) -> None:
    break_it(database)
    with pytest.raises(RecordsUnusable) as raised:
        read_record_db(database, SCHEMA)
    assert raised.value.hint


def test_a_broken_database_does_not_keep_others_from_being_read(database: Path, tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    shutil.copy(database, tmp_path / "fleet" / "good.db")
    shutil.copy(database, tmp_path / "fleet" / "bad.db")
    _scribbled(tmp_path / "fleet" / "bad.db")
    records = read_records([tmp_path / "fleet"])
    assert records.backend.to_pyarrow(records.table.count()).as_py() == len(ROWS)
    assert [Path(one.path).name for one in records.skipped] == ["bad.db"]


def test_plans_of_an_older_service_leave_the_board_unnamed(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE plans SET facts = json_remove(facts, '$.board', '$.weight_bytes')")
    records = read_records([database], board="attic")
    found = records.backend.to_pyarrow(records.table.select("board", "weight_bytes").distinct()).to_pylist()
    assert found == [{"board": "attic", "weight_bytes": None}]
