from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from magnitude.board.boot import EARLIEST_S
from magnitude.feedback import record_table
from magnitude.feedback.record_file import FileBroken, RecordFile, RecordLimits, StorageRefuses, reading
from magnitude.feedback.records import FAILURES, TaskRow
from tests.feedback.record_samples import NOW_S, numbers, row, stamp

DAY_S = 86400.0
PLENTY = RecordLimits(reserve_bytes=0)


def opened(folder: Path, limits: RecordLimits = PLENTY) -> RecordFile:
    return RecordFile(folder / "records.db", limits)


def filled(folder: Path, rows: list[TaskRow]) -> Path:
    file = opened(folder)
    file.append(rows)
    file.close()
    return file.path


def kept(path: Path, limit: int = 1_000_000) -> list[TaskRow]:
    with reading(path) as connection:
        return record_table.recent(connection, limit)


def test_every_field_of_a_row_comes_back(tmp_path: Path) -> None:
    written = [
        row(1, outcome="killed", code="engine_gone", task="agent", request="req-1", new_tokens=7),
        row(2, plan=None, kind="embed", cached_tokens=1, drafted_tokens=4, accepted_tokens=2),
    ]
    path = filled(tmp_path, written)
    assert kept(path) == written[::-1]


def test_a_file_goes_on_where_it_was_left(tmp_path: Path) -> None:
    filled(tmp_path, [row(1)])
    assert numbers(kept(filled(tmp_path, [row(2), row(3)]))) == [3, 2, 1]


def test_rows_are_found_by_their_outcome(tmp_path: Path) -> None:
    rows = [row(1), row(2, outcome="killed"), row(3, outcome="refused"), row(4, outcome="cancelled")]
    path = filled(tmp_path, rows)
    with reading(path) as connection:
        assert numbers(record_table.recent(connection, 10, FAILURES)) == [3, 2]
        assert numbers(record_table.recent(connection, 10, ("ok", "killed"))) == [2, 1]
        assert record_table.counts(connection) == {"ok": 1, "killed": 1, "refused": 1, "cancelled": 1}
        plan = connection.execute(
            "EXPLAIN QUERY PLAN SELECT id FROM tasks WHERE outcome IN ('killed') "
            "AND outcome NOT IN ('ok', 'cancelled') ORDER BY id DESC LIMIT 5"
        ).fetchall()
    assert "failures" in str(plan)


def test_others_can_read_while_the_service_writes(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.append([row(1)])
    assert numbers(kept(file.path)) == [1]
    file.append([row(2)])
    assert numbers(kept(file.path)) == [2, 1]
    file.close()


# --- broken files ---


def damage_pages(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))


def drop_a_column(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE tasks DROP COLUMN batch")
    connection.close()


def belong_to_others(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE people (name TEXT)")
    connection.close()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "torn JSON": lambda path: path.write_bytes(b'{"a":1,'),
    "NUL bytes": lambda path: path.write_bytes(b"\0" * 4096),
    "a list": lambda path: path.write_bytes(b"[]"),
    "NaN": lambda path: path.write_bytes(b'{"a":NaN}'),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:6000]),
    "only its header": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "overwritten pages": damage_pages,
    "a column is missing": drop_a_column,
    "of another program": belong_to_others,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_broken_file_is_set_aside_with_one_line_and_a_new_one_begun(
    tmp_path: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    path = filled(tmp_path, [row(n) for n in range(200)])
    damage(path)
    content = path.read_bytes()
    file = opened(tmp_path)
    file.append([row(7)])
    file.close()
    assert numbers(kept(path)) == [7]
    assert (tmp_path / "records.db.broken-1").read_bytes() == content
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_at_most_two_broken_files_are_kept_the_newest_first(tmp_path: Path) -> None:
    for text in (b"first", b"second", b"third"):
        (tmp_path / "records.db").write_bytes(text)
        opened(tmp_path).close()
    kept_aside = {path.name: path.read_bytes() for path in tmp_path.glob("*broken*")}
    assert kept_aside == {"records.db.broken-1": b"third", "records.db.broken-2": b"second"}


@pytest.mark.parametrize("garbage", [b"", b"\0" * 5000, b"garbage" * 3000], ids=["empty", "NUL bytes", "garbage"])
def test_a_log_that_is_garbage_costs_only_what_was_in_it(tmp_path: Path, garbage: bytes) -> None:
    path = filled(tmp_path, [row(1)])
    path.with_name("records.db-wal").write_bytes(garbage)
    path.with_name("records.db-shm").write_bytes(garbage)
    assert numbers(kept(filled(tmp_path, [row(2)]))) == [2, 1]
    assert not list(tmp_path.glob("*broken*"))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_log_that_was_cut_off_costs_only_transactions_behind_the_cut(tmp_path: Path, share: float) -> None:
    file = opened(tmp_path)
    for number in range(20):
        file.append([row(number)])
    # What a power cut leaves: the files as they are, without the orderly end of a close.
    target = tmp_path / "after"
    target.mkdir()
    log_bytes = (tmp_path / "records.db-wal").read_bytes()
    assert log_bytes
    (target / "records.db").write_bytes(file.path.read_bytes())
    (target / "records.db-wal").write_bytes(log_bytes[: int(len(log_bytes) * share)])
    file.close()
    rows = numbers(kept(filled(target, [row(99)])))
    assert rows[0] == 99
    assert rows[1:] == list(range(len(rows) - 1))[::-1]


def test_a_file_of_a_newer_version_is_set_aside_whole(tmp_path: Path) -> None:
    path = filled(tmp_path, [row(1)])
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {record_table.SCHEMA + 3}")
    connection.close()
    content = path.read_bytes()
    assert numbers(kept(filled(tmp_path, [row(2)]))) == [2]
    assert (tmp_path / f"records.db.schema-{record_table.SCHEMA + 3}-1").read_bytes() == content


def test_a_file_of_an_older_version_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path, [row(1)])
    newer = (*record_table.STEPS, ("ALTER TABLE tasks ADD COLUMN humidity REAL",))
    monkeypatch.setattr("magnitude.feedback.record_file.STEPS", newer)
    monkeypatch.setattr("magnitude.feedback.record_file.SCHEMA", len(newer))
    assert numbers(kept(filled(tmp_path, [row(2)]))) == [2, 1]
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT humidity FROM tasks").fetchall() == [(None,), (None,)]
    assert connection.execute("PRAGMA user_version").fetchone() == (len(newer),)
    connection.close()


# --- storage that refuses ---


def test_a_folder_that_cannot_be_made_is_a_reason_and_no_crash(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    with pytest.raises(StorageRefuses, match="cannot be written"):
        RecordFile(tmp_path / "state/records.db", PLENTY)


def test_nothing_is_written_into_the_reserve_of_the_disk(tmp_path: Path) -> None:
    file = opened(tmp_path, RecordLimits(reserve_bytes=1 << 60))
    with pytest.raises(StorageRefuses, match="stay reserved"):
        file.append([row(1)])
    file.close()


def test_a_file_that_breaks_while_it_is_open_says_so(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.append([row(1)])
    drop_a_column(file.path)
    with pytest.raises(FileBroken):
        file.append([row(2)])
    file.close()


# --- bounds ---


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_the_file_stays_below_its_size_and_the_oldest_rows_go_first(tmp_path: Path) -> None:
    limits = RecordLimits(max_bytes=256 * 1024, reserve_bytes=0)
    file = opened(tmp_path, limits)
    for batch in range(60):
        file.append([row(batch * 100 + n, request=f"req-{n:032d}") for n in range(100)])
        assert file.path.stat().st_size <= limits.max_bytes
    rows = numbers(kept(file.path))
    assert rows == list(range(5999, 5999 - len(rows), -1))
    assert len(rows) > 500
    file.close()
    assert size_of(tmp_path) <= limits.max_bytes


def test_the_number_of_rows_stays_bounded(tmp_path: Path) -> None:
    file = opened(tmp_path, RecordLimits(max_rows=50, reserve_bytes=0))
    for number in range(120):
        file.append([row(number)])
    rows = numbers(kept(file.path))
    assert 40 <= len(rows) <= 50
    assert rows[0] == 119
    file.append([row(n) for n in range(200)])
    file.close()


def test_a_file_that_is_larger_than_its_new_limit_shrinks(tmp_path: Path) -> None:
    path = filled(tmp_path, [row(n) for n in range(5000)])
    before = path.stat().st_size
    limits = RecordLimits(max_bytes=before // 2, reserve_bytes=0)
    file = opened(tmp_path, limits)
    for number in range(30):
        file.append([row(number)])
    file.close()
    assert path.stat().st_size <= limits.max_bytes


def test_old_rows_go_a_tenth_at_a_time(tmp_path: Path) -> None:
    file = opened(tmp_path)
    old, new = stamp(NOW_S - 40 * DAY_S), stamp(NOW_S - DAY_S)
    file.append([row(n, when=old) for n in range(50)] + [row(n, when=new) for n in range(50, 100)])
    assert file.prune(stamp(NOW_S)) == 10
    assert numbers(kept(file.path))[-1] == 10
    for _ in range(100):
        file.prune(stamp(NOW_S))
    assert sorted(numbers(kept(file.path))) == list(range(50, 100))
    file.close()


@pytest.mark.parametrize("wall_s", [0.0, 1000.0, EARLIEST_S - 1, NOW_S + 55 * 365 * DAY_S])
def test_stamps_that_cannot_be_right_age_no_row(tmp_path: Path, wall_s: float) -> None:
    file = opened(tmp_path)
    file.append([row(1, when=stamp(wall_s))])
    assert file.prune(stamp(NOW_S)) == 0
    file.close()


def test_a_clock_that_was_not_set_removes_nothing(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.append([row(1, when=stamp(NOW_S)), row(2, when=stamp(10.0))])
    assert file.prune(stamp(20.0)) == 0
    file.close()


def test_reading_where_nothing_was_recorded_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageRefuses, match="there is no"), reading(tmp_path / "records.db"):
        pass
