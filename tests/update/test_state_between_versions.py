"""State that two versions share: an update that is taken back, and comes again, loses nothing of either's."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from magnitude.feedback.record_file import RecordFile, RecordLimits
from magnitude.feedback.record_table import SCHEMA as RECORDS_SCHEMA
from magnitude.feedback.record_table import STEPS
from magnitude.feedback.recorder import RECORDS_FILE
from magnitude.persist import StateFile
from magnitude.policy.dumps import CURRENT, Dump
from magnitude.policy.dumps import SCHEMA as LEARNED_SCHEMA
from magnitude.schedule import golden_gate, throughput, variant_gate
from magnitude.tuning import kept as tuned
from tests.feedback.record_samples import decision, row
from tests.policy.test_dumps import HERE, dumps, learned

# Every state file: its name, its type, its number, and a value that is not the default.
STATE_FILES: dict[str, tuple[str, type[Any], int, Callable[[], Any]]] = {
    "golden verdicts": (
        "golden.json",
        golden_gate.Verdicts,
        golden_gate.VERDICTS_SCHEMA,
        lambda: golden_gate.Verdicts(passed=["a"]),
    ),
    "variant verdicts": (
        "variants.json",
        variant_gate.Verdicts,
        variant_gate.VERDICTS_SCHEMA,
        variant_gate.Verdicts,
    ),
    "throughput": (
        "throughput.json",
        throughput.Measurements,
        throughput.SCHEMA,
        lambda: throughput.Measurements(step_s={"k": {1: 0.5}}),
    ),
    "tuning": ("tune-0000.json", tuned.KeptSweep, tuned.SCHEMA, tuned.KeptSweep),
    "learned strategies": (CURRENT, Dump, LEARNED_SCHEMA, lambda: Dump(generation=3, learned=learned(1))),
}


class Later(msgspec.Struct, frozen=True):
    """What some later version keeps in such a file."""

    something: str = ""
    else_: int = 0


@pytest.mark.parametrize("kind", STATE_FILES)
def test_an_older_version_leaves_newer_state_to_its_version_and_keeps_its_own_beside_it(
    tmp_path: Path, kind: str
) -> None:
    name, type_, schema, value = STATE_FILES[kind]
    mine = value()
    theirs = StateFile(tmp_path / name, Later, schema=schema + 1)
    theirs.save(Later(something="first"))
    theirs.save(Later(something="newer"))
    ours: StateFile[Any] = StateFile(tmp_path / name, type_, schema=schema)
    assert ours.load(lambda: mine) == mine  # nothing of theirs, and no error
    assert ours.save(mine)
    assert StateFile(tmp_path / name, Later, schema=schema + 1).load(Later) == Later(something="newer")
    assert StateFile(tmp_path / name, type_, schema=schema).load(lambda: None) == mine


def test_a_learned_dump_of_a_newer_version_outlasts_the_older_ones_learning(tmp_path: Path) -> None:
    ours = dumps(tmp_path)
    folder = ours.folder_of(HERE)
    folder.mkdir(parents=True)
    later = StateFile(folder / CURRENT, Later, schema=LEARNED_SCHEMA + 1)
    later.save(Later(something="learned with more"))
    assert ours.load(HERE).learned is None
    assert ours.replace(learned(1))
    assert later.load(Later) == Later(something="learned with more")
    assert dumps(tmp_path).load(HERE).learned is not None


def records(folder: Path, *rows: Any) -> Path:
    file = RecordFile(folder / RECORDS_FILE, RecordLimits(reserve_bytes=0))
    file.append(rows)
    file.close()
    return file.path


def told(path: Path) -> list[int]:
    """The numbers of the tasks that are kept, the oldest first."""
    connection = sqlite3.connect(path)
    found = [number for (number,) in connection.execute("SELECT prompt_tokens FROM tasks ORDER BY id")]
    connection.close()
    return found


@pytest.fixture
def becomes_newer(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Makes this program a version with one more column, and the present one again."""
    steps = (*STEPS, ("ALTER TABLE tasks ADD COLUMN humidity REAL",))

    def change(newer: bool) -> None:
        for module in ("record_file", "record_return"):
            monkeypatch.setattr(f"magnitude.feedback.{module}.SCHEMA", RECORDS_SCHEMA + newer)
        monkeypatch.setattr("magnitude.feedback.record_file.STEPS", steps if newer else STEPS)

    return change


def test_records_outlast_an_update_that_is_taken_back_and_comes_again(
    tmp_path: Path, becomes_newer: Callable[[bool], None]
) -> None:
    path = records(tmp_path, row(1))
    becomes_newer(True)
    records(tmp_path, row(2), decision(2))
    becomes_newer(False)
    records(tmp_path, row(3), decision(3))
    assert told(path) == [3]
    becomes_newer(True)
    records(tmp_path, row(4))
    assert told(path) == [1, 2, 3, 4]
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT reason FROM decisions ORDER BY id").fetchall() == [("2",), ("3",)]
    assert connection.execute("SELECT count(*) FROM tasks WHERE boot NOT IN (SELECT id FROM boots)").fetchone() == (
        0,
    )
    connection.close()
    assert [file.name for file in tmp_path.iterdir()] == [RECORDS_FILE]


def test_a_power_cut_between_the_two_renames_loses_no_records(
    tmp_path: Path, becomes_newer: Callable[[bool], None]
) -> None:
    becomes_newer(True)
    path = records(tmp_path, row(1))
    becomes_newer(False)
    records(tmp_path, row(2))
    path.rename(tmp_path / f"{RECORDS_FILE}.interim")
    becomes_newer(True)
    records(tmp_path, row(3))
    assert told(path) == [1, 2, 3]


def test_records_that_are_broken_meanwhile_are_set_aside_and_hold_nothing_up(
    tmp_path: Path, becomes_newer: Callable[[bool], None]
) -> None:
    becomes_newer(True)
    path = records(tmp_path, row(1))
    becomes_newer(False)
    records(tmp_path, row(2)).write_bytes(b"not a database at all")
    becomes_newer(True)
    records(tmp_path, row(3))
    assert told(path) == [1, 3]
    assert (tmp_path / f"{RECORDS_FILE}.broken-1").read_bytes() == b"not a database at all"
