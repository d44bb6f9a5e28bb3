from __future__ import annotations

from pathlib import Path

from magnitude.config import Settings
from magnitude.doctor import DoctorContext, Finding
from magnitude.doctor.checks import failures
from magnitude.feedback.bundles import FOLDER
from magnitude.feedback.failures import FailureLimits, FailureLog
from magnitude.feedback.record_file import RecordFile, RecordLimits
from magnitude.feedback.recorder import RECORDS_FILE
from magnitude.paths import find_paths
from magnitude.supervise.loss import EngineLoss
from tests.feedback.failure_samples import surroundings
from tests.feedback.record_samples import NOW_S, MovingClocks, row, stamp

DAY_S = 86400.0


def found(home: Path, wall_s: float = NOW_S) -> Finding:
    # Another boot than that of the samples: only the wall clock can tell how long ago they were.
    return failures.check(
        DoctorContext(
            settings=Settings(),
            paths=find_paths({"MAGNITUDE_HOME": str(home)}),
            wall_clock=lambda: wall_s,
            monotonic=lambda: 5.0,
        )
    )


def recorded(home: Path, *rows: object) -> None:
    file = RecordFile(home / "state" / RECORDS_FILE, RecordLimits(reserve_bytes=0))
    file.append(rows)  # type: ignore[arg-type]
    file.close()


def lost(home: Path, cause: str) -> None:
    log = FailureLog(home / "state" / FOLDER, FailureLimits(reserve_bytes=0), surroundings(), clocks=MovingClocks())
    log.engine_lost(EngineLoss("x", cause), [])  # type: ignore[arg-type]
    log.close()


def test_a_machine_where_nothing_went_wrong_is_fine(tmp_path: Path) -> None:
    assert found(tmp_path).level == "ok"
    recorded(tmp_path, row(1), row(2, outcome="cancelled"))
    assert found(tmp_path).level == "ok"


def test_lost_engines_are_a_warning_for_a_day(tmp_path: Path) -> None:
    lost(tmp_path, "hang")
    lost(tmp_path, "hang")
    lost(tmp_path, "oom")
    finding = found(tmp_path, NOW_S + DAY_S / 2)
    assert (finding.level, finding.title) == ("warning", "3 engines were lost within a day")
    assert "2 hang, 1 oom" in finding.detail
    assert found(tmp_path, NOW_S + 2 * DAY_S).level == "ok"


def test_failed_tasks_are_worth_a_note(tmp_path: Path) -> None:
    recorded(tmp_path, row(1, outcome="killed"), row(2, outcome="refused"), row(3, outcome="refused"))
    finding = found(tmp_path, NOW_S + 60)
    assert finding.level == "notice"
    assert finding.detail == "tasks that failed: 2 refused, 1 killed"


def test_stamps_of_a_clock_that_was_not_set_count_for_nothing(tmp_path: Path) -> None:
    recorded(tmp_path, row(1, outcome="killed", when=stamp(100.0)))
    assert found(tmp_path).level == "ok"
    assert found(tmp_path, 200.0).level == "ok"


def test_files_that_were_set_aside_are_named(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/golden.json.broken-1").write_bytes(b"")
    assert "golden.json.broken-1" in found(tmp_path).detail


def test_records_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/records.db").write_text("no database at all")
    assert found(tmp_path).title == "What went wrong lately cannot be read"
