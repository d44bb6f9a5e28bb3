from __future__ import annotations

import logging
from pathlib import Path

import pytest

from magnitude.persist import StateFile
from magnitude.schedule.golden_gate import VERDICTS_SCHEMA, GoldenGate, Verdicts
from magnitude.service_loop import prepare_state_folder


def test_the_state_folder_is_made(tmp_path: Path) -> None:
    prepare_state_folder(tmp_path / "a" / "state")
    assert (tmp_path / "a" / "state").is_dir()


def test_a_state_folder_that_cannot_be_made_is_said_and_survived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        prepare_state_folder(tmp_path / "state")
        GoldenGate(tmp_path / "state")
    assert "nothing is kept over a restart" in caplog.text
    state = StateFile(tmp_path / "state" / "golden.json", Verdicts, schema=VERDICTS_SCHEMA)
    assert not state.save(Verdicts(passed=["key"]))
    assert (tmp_path / "state").read_text() == "in the way"
