from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from magnitude.board.boot import EARLIEST_S
from magnitude.engine.session_spec import SessionSpec
from magnitude.feedback import record_table
from magnitude.feedback.circumstances import Circumstances
from magnitude.feedback.decisions import DecisionRow
from magnitude.feedback.record_file import FileBroken, RecordFile, RecordLimits, StorageRefuses, reading
from magnitude.feedback.records import FAILURES, TaskRecord, TaskRow
from magnitude.policy.strategy import Strategy
from tests.feedback.record_samples import HOT, NOW_S, STRATEGY, decision, numbers, row, stamp

DAY_S = 86400.0
PLENTY = RecordLimits(reserve_bytes=0)


def opened(folder: Path, limits: RecordLimits = PLENTY) -> RecordFile:
    return RecordFile(folder / "records.db", limits)


def filled(folder: Path, rows: Sequence[TaskRow | DecisionRow]) -> Path:
    file = opened(folder)
    file.append(rows)
    file.close()
    return file.path


def task(**fields: Any) -> TaskRecord:
    return TaskRecord(kind="embed", model="m", outcome="ok", **fields)


def kept_decisions(path: Path) -> list[DecisionRow]:
    with reading(path) as connection:
        return list(record_table.decisions(connection))


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


def test_a_task_comes_back_with_the_strategy_it_ran_with_and_what_that_was_chosen_for(tmp_path: Path) -> None:
    met = Circumstances(
        throttled=True, clock_share=0.5, cores=2, field_test="f", arm="on", strategy=STRATEGY, chosen=HOT
    )
    cool = Circumstances(throttled=False)
    rows = [
        TaskRow(stamp=stamp(), task=task(peak_rss_bytes=1 << 33), circumstances=met),
        TaskRow(stamp=stamp(), task=task(strategy="gone"), circumstances=cool),
    ]
    path = filled(tmp_path, rows)
    with_id = TaskRow(
        stamp=stamp(), task=task(peak_rss_bytes=1 << 33, strategy=STRATEGY.strategy_id), circumstances=met
    )
    assert kept(path) == [rows[1], with_id]
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT strategy_id FROM strategies").fetchall() == [(STRATEGY.strategy_id,)]
    assert connection.execute("SELECT chosen_heat, chosen_rows, throttled FROM tasks").fetchall() == [
        ("hot", 2, 1),
        (None, None, 0),
    ]
    connection.close()


def test_every_field_of_a_decision_comes_back(tmp_path: Path) -> None:
    written = [
        decision(1, key="rows=1", from_id="1 thread", to_id="2 threads", delay_s=3.5, gain=0.2, strategy=STRATEGY),
        decision(2, source="thermal", kind="caps", model="", part="", what="clocks: 1.5 GHz", repeats=7),
    ]
    path = filled(tmp_path, [row(1), *written])
    assert kept_decisions(path) == written[::-1]
    assert numbers(kept(path)) == [1]


def test_a_strategy_of_other_settings_hides_no_row(tmp_path: Path) -> None:
    met = Circumstances(strategy=STRATEGY)
    path = filled(tmp_path, [TaskRow(stamp=stamp(), task=task(), circumstances=met), decision(1, strategy=STRATEGY)])
    connection = sqlite3.connect(path)
    connection.execute("""UPDATE strategies SET settings = '{"gears": 5}'""")
    connection.commit()
    connection.close()
    (found,), (decided,) = kept(path), kept_decisions(path)
    assert (found.task.strategy, found.circumstances.strategy) == (STRATEGY.strategy_id, None)
    assert decided.strategy is None


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


# What version 1 of the schema could say of a task.
FIRST_COLUMNS = (
    "wall_s, at_s, boot, plan, kind, model, outcome, code, task, request, prompt_tokens, new_tokens, cached_tokens, "
    "drafted_tokens, accepted_tokens, queue_s, prefill_s, decode_s, batch, queue_depth, running, engine_restarts, "
    "engine_rss_bytes, memory_headroom_bytes, memory_limit_bytes, memory_step, temperature_c"
)


def make_first_version(path: Path) -> None:
    """A file as the first version of the schema has it, with one failed task."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute(f"PRAGMA application_id = {record_table.APPLICATION_ID}")
    for statement in record_table.STEPS[0]:
        connection.execute(statement)
    connection.execute("INSERT INTO boots VALUES (1, 'boot-0')")
    values = (NOW_S, 5.0, 1, None, "embed", "m", "killed", "engine_gone", "", "", 41, 0, 0, 0, 0, 0.5, 1.0, 0.0, 0.0)
    met = (3, 1, 2, 99, None, None, "normal", 61.5)
    connection.execute(
        f"INSERT INTO tasks ({FIRST_COLUMNS}) VALUES ({', '.join('?' * 27)})",
        (*values, *met),
    )
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()


def test_a_file_of_the_first_version_is_carried_over_with_what_it_says(tmp_path: Path) -> None:
    make_first_version(tmp_path / "records.db")
    path = filled(tmp_path, [row(2), decision(3, strategy=STRATEGY)])
    new, old = kept(path)
    assert numbers([new, old]) == [2, 41]
    assert old.stamp == stamp(NOW_S, 5.0, "boot-0")
    assert (old.task.outcome, old.task.strategy, old.task.peak_rss_bytes) == ("killed", "", None)
    assert old.circumstances == Circumstances(
        queue_depth=3, running=1, engine_restarts=2, engine_rss_bytes=99, memory_step="normal", temperature_c=61.5
    )
    assert [each.reason for each in kept_decisions(path)] == ["3"]
    with reading(path) as connection:
        assert numbers(record_table.recent(connection, 10, FAILURES)) == [41]
    assert not list(tmp_path.glob("*broken*"))


def test_who_reads_a_file_of_the_first_version_is_told_to_start_the_service(tmp_path: Path) -> None:
    make_first_version(tmp_path / "records.db")
    with pytest.raises(StorageRefuses, match="earlier version") as refused, reading(tmp_path / "records.db"):
        pass
    assert "Start the service" in refused.value.hint


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


def test_the_number_of_decisions_stays_bounded_and_costs_no_task(tmp_path: Path) -> None:
    file = opened(tmp_path, RecordLimits(max_decisions=50, reserve_bytes=0))
    file.append([row(7)])
    for number in range(120):
        file.append([decision(number)])
    file.close()
    reasons = [each.reason for each in kept_decisions(file.path)]
    assert 40 <= len(reasons) <= 50
    assert reasons[0] == "119"
    assert numbers(kept(file.path)) == [7]


def test_decisions_count_for_the_size_of_the_file(tmp_path: Path) -> None:
    limits = RecordLimits(max_bytes=256 * 1024, reserve_bytes=0)
    file = opened(tmp_path, limits)
    for batch in range(30):
        file.append([decision(batch, what="w" * 300) for _ in range(50)])
        file.append([row(batch) for _ in range(50)])
        assert file.path.stat().st_size <= limits.max_bytes
    file.close()
    assert kept_decisions(file.path)[0].reason == "29"
    assert numbers(kept(file.path))[0] == 29


def test_old_decisions_go_with_the_strategies_that_nobody_names_any_more(tmp_path: Path) -> None:
    file = opened(tmp_path)
    old, new = stamp(NOW_S - 40 * DAY_S, boot_id="old"), stamp(NOW_S - DAY_S)
    other = Strategy(prefill=SessionSpec(threads=1), decode=SessionSpec(threads=1))
    file.append([decision(1, when=old, strategy=other), decision(2, when=new, strategy=STRATEGY)])
    assert file.prune(stamp(NOW_S)) == 1
    file.close()
    assert [each.reason for each in kept_decisions(file.path)] == ["2"]
    connection = sqlite3.connect(file.path)
    assert connection.execute("SELECT strategy_id FROM strategies").fetchall() == [(STRATEGY.strategy_id,)]
    assert connection.execute("SELECT boot_id FROM boots").fetchall() == [("boot-1",)]
    connection.close()


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
