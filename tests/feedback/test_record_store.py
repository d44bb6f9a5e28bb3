from __future__ import annotations

import asyncio
import itertools
import logging
import sqlite3
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.feedback.record_file import RecordLimits
from magnitude.feedback.record_store import (
    FLUSH_DECISIONS_S,
    FLUSH_ROWS,
    FLUSH_S,
    MAX_WAITING,
    RETRY_FIRST_S,
    RETRY_MAX_S,
    Pace,
    RecordStore,
)
from tests.feedback.record_samples import MovingClocks, decision, numbers, row

PLENTY = RecordLimits(reserve_bytes=0)


def started(folder: Path, limits: RecordLimits = PLENTY, clocks: MovingClocks | None = None) -> RecordStore:
    store = RecordStore(folder / "records.db", limits, clocks=clocks or MovingClocks())
    store.start()
    asyncio.run(store.opened())
    return store


def recent(store: RecordStore, limit: int = 100) -> list[int]:
    return numbers(asyncio.run(store.recent(limit)))


def test_rows_wait_for_others_and_are_shown_meanwhile(tmp_path: Path) -> None:
    store = started(tmp_path)
    store.add(row(1))
    store.add(row(2, outcome="killed"))
    assert store.transactions == 0
    assert recent(store) == [2, 1]
    assert recent(store, 1) == [2]
    assert asyncio.run(store.counts()) == {"ok": 1, "killed": 1}
    assert store.flush()
    store.add(row(3))
    assert (store.transactions, store.committed) == (1, 2)
    assert recent(store) == [3, 2, 1]
    assert numbers(asyncio.run(store.recent(10, ("killed",)))) == [2]
    store.stop()


def test_a_stop_writes_what_waits(tmp_path: Path) -> None:
    store = started(tmp_path)
    store.add(row(1))
    store.stop()
    again = started(tmp_path)
    assert recent(again) == [1]
    again.stop()


def test_an_idle_hour_writes_nothing(tmp_path: Path) -> None:
    clocks = MovingClocks()
    store = started(tmp_path, clocks=clocks)
    store.add(row(1))
    store.flush()
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    for _ in range(3600):
        clocks.passes(1.0)
        with store._changed:
            store._changed.notify_all()  # the thread looks at the clock
    assert store.flush()
    assert store.transactions == 1
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    store.stop()


def test_decisions_are_written_with_the_tasks_that_follow(tmp_path: Path) -> None:
    clocks = MovingClocks()
    store = started(tmp_path, clocks=clocks)
    store.add_decision(decision(1))
    clocks.passes(FLUSH_S)
    with store._changed:
        store._changed.notify_all()
    assert [each.reason for each in asyncio.run(store.history(3600, 10)).decisions] == ["1"]
    assert store.transactions == 0
    store.add(row(2))
    assert store.flush()
    assert (store.transactions, store.committed) == (1, 2)
    history = asyncio.run(store.history(3600, 10))
    assert ([each.reason for each in history.decisions], numbers(history.tasks)) == (["1"], [2])
    assert recent(store) == [2]
    store.stop()


def test_decisions_without_tasks_are_written_all_the_same(tmp_path: Path) -> None:
    clocks = MovingClocks()
    store = started(tmp_path, clocks=clocks)
    store.add_decision(decision(1))
    clocks.passes(FLUSH_DECISIONS_S)
    with store._changed:
        store._changed.notify_all()
        assert store._changed.wait_for(lambda: store.committed == 1, 30)
    store.stop()


def test_the_history_ends_where_it_was_asked_to(tmp_path: Path) -> None:
    clocks = MovingClocks()
    store = started(tmp_path, clocks=clocks)
    for number in range(6):
        store.add(row(number, when=clocks.now()))
        store.add_decision(decision(number, when=clocks.now()))
        if number == 3:
            store.flush()
        clocks.passes(60.0)
    history = asyncio.run(store.history(200.0, 100))
    assert numbers(history.tasks) == [5, 4, 3]
    assert [each.reason for each in history.decisions] == ["5", "4", "3"]
    assert numbers(asyncio.run(store.history(200.0, 2)).tasks) == [5, 4]
    store.stop()


def test_one_models_history_is_as_long_as_was_asked_for_however_much_others_did(tmp_path: Path) -> None:
    store = started(tmp_path)
    for number in range(6):
        model = "n" if number % 3 else "m"
        store.add(row(number, model=model))
        store.add_decision(decision(number, model=model))
        if number == 3:
            store.add_decision(decision(30, source="thermal", model="", part=""))
            store.flush()
    store.add_decision(decision(60, model="m"))
    history = asyncio.run(store.history(3600, 3, "m"))
    assert [each.reason for each in history.decisions] == ["60", "30", "3"]
    assert history.cut_off
    assert numbers(history.tasks) == [3, 0]
    assert [each.reason for each in asyncio.run(store.history(3600, 3)).decisions] == ["60", "5", "4"]
    store.stop()


def test_a_board_decision_that_flaps_leaves_a_row_a_minute(tmp_path: Path) -> None:
    clocks = MovingClocks()
    store = started(tmp_path, clocks=clocks)
    for _ in range(600):
        store.add_decision(decision(when=clocks.now(), source="power", what="full to saving"))
        store.add_decision(decision(when=clocks.now(), source="strategy", what="same"))
        clocks.passes(1.0)
    history = asyncio.run(store.history(3600, 10_000))
    flapping = [each for each in history.decisions if each.source == "power"]
    assert (len(flapping), flapping[0].repeats) == (10, 59)
    assert len(history.decisions) == 610
    store.stop()


def test_whoever_reads_while_rows_are_written_sees_each_once(tmp_path: Path) -> None:
    store = started(tmp_path)
    seen = 0
    for number in range(50):
        store.add(row(number))
        with store._changed:
            store._flush = True  # written while this goes on
            store._changed.notify_all()
        found = recent(store, 1000)
        assert found == list(range(number, -1, -1))
        history = asyncio.run(store.history(3600, 1000))
        assert numbers(history.tasks) == found
        seen = asyncio.run(store.counts())["ok"]
    assert seen == 50
    store.stop()


def test_a_burst_is_written_before_it_piles_up(tmp_path: Path) -> None:
    store = started(tmp_path)
    for number in range(FLUSH_ROWS):
        store.add(row(number))
    with store._changed:
        assert store._changed.wait_for(lambda: store.committed == FLUSH_ROWS, 30)
    store.stop()


def test_storage_that_refuses_costs_only_the_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "state"
    folder.write_text("in the way")
    clocks = MovingClocks()
    store = started(folder, clocks=clocks)
    assert "cannot be written" in store.off
    store.add(row(1))
    assert not store.flush()
    assert recent(store) == [1]
    folder.unlink()
    clocks.passes(RETRY_MAX_S)
    with store._changed:
        store._changed.notify_all()
        assert store._changed.wait_for(lambda: store.committed == 1, 30)
    assert store.off == ""
    store.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "records are not kept any more",
        "records are kept again",
    ]


def test_memory_stays_bounded_while_the_storage_refuses(tmp_path: Path) -> None:
    store = started(tmp_path, RecordLimits(reserve_bytes=1 << 60))
    for number in range(MAX_WAITING + 10):
        store.add(row(number))
    store.flush()
    kept = recent(store, 2 * MAX_WAITING)
    assert len(kept) <= MAX_WAITING
    assert kept[0] == MAX_WAITING + 9
    store.stop()


def test_rows_that_come_while_a_write_fails_take_the_place_of_the_oldest(tmp_path: Path) -> None:
    store = started(tmp_path)
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # the store waits for it for some seconds, then gives up
    for number in range(FLUSH_ROWS):
        store.add(row(number))
    while not store._writing:
        time.sleep(0.01)
    for number in range(MAX_WAITING):
        store.add(row(FLUSH_ROWS + number))
    with store._changed:
        assert store._changed.wait_for(lambda: not store._writing, 60)
        kept = [each.task.prompt_tokens for each in store._waiting]
    other.close()
    assert kept == list(range(FLUSH_ROWS, FLUSH_ROWS + MAX_WAITING))
    store.stop()


def test_a_file_that_was_removed_is_begun_anew(tmp_path: Path) -> None:
    store = started(tmp_path)
    store.add(row(1))
    store.flush()
    for path in tmp_path.iterdir():
        path.unlink()
    store.add(row(2))
    assert store.flush()
    assert recent(store) == [2]
    store.stop()


def test_a_file_that_breaks_in_service_is_set_aside_and_the_rows_written_to_a_new_one(tmp_path: Path) -> None:
    store = started(tmp_path)
    store.add(row(1))
    store.flush()
    connection = sqlite3.connect(tmp_path / "records.db")
    connection.execute("ALTER TABLE tasks DROP COLUMN batch")
    connection.close()
    store.add(row(2))
    assert store.flush()
    assert recent(store) == [2]
    assert (tmp_path / "records.db.broken-1").exists()
    store.stop()


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(0, 30)), max_size=200))
def test_a_busy_service_writes_at_most_once_a_minute(work: list[tuple[float, int]]) -> None:
    pace, now_s, rows = Pace(), 0.0, 0
    writes: list[float] = []
    for passed_s, added in work:
        end_s = now_s + passed_s
        while (due_s := pace.due_s(now_s, rows)) is not None and now_s + due_s <= end_s:
            now_s += due_s
            pace.written()
            writes.append(now_s)
            rows = 0
        now_s = end_s
        rows += added
        if added:
            pace.waiting(now_s)
    assert all(later - earlier >= FLUSH_S - 1e-6 for earlier, later in itertools.pairwise(writes))
    if rows:
        due_s = pace.due_s(now_s, rows)
        assert due_s is not None
        assert due_s <= FLUSH_S + 1e-6


def test_storage_is_tried_again_at_growing_intervals() -> None:
    pace, now_s = Pace(), 0.0
    waits = []
    for _ in range(10):
        pace.refused(now_s)
        due_s = pace.due_s(now_s, 0)
        assert due_s is not None
        waits.append(due_s)
        now_s += due_s
    assert waits[:3] == [RETRY_FIRST_S, 2 * RETRY_FIRST_S, 4 * RETRY_FIRST_S]
    assert waits[-1] == RETRY_MAX_S
    pace.written()
    assert pace.due_s(now_s, 0) is None
