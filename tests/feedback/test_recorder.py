from __future__ import annotations

import logging
from pathlib import Path

import pytest

from magnitude.config.records import RecordsSettings
from magnitude.engine.protocol import Heartbeat, Hello
from magnitude.feedback.bundles import ServedModel
from magnitude.feedback.recorder import Recorder
from magnitude.governor.memory_sight import MemorySight
from magnitude.governor.memory_state import MemoryState
from magnitude.supervise.loss import EngineLoss


class Silent:
    """An engine and a memory of which nothing is known."""

    heartbeat: Heartbeat | None = None
    hello: Hello | None = None
    sight = MemorySight()
    step = "normal"

    def state(self) -> MemoryState:
        return MemoryState()


def no_models() -> list[ServedModel]:
    raise RuntimeError("a fault in what is asked at a loss")


def test_a_loss_that_cannot_be_written_down_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(
        tmp_path,
        RecordsSettings(max_bytes=0),
        engine=Silent(),
        restarts=lambda: 0,
        load=lambda: (0, 0),
        plan=lambda name: None,
        models=no_models,
        memory=Silent,
        last_lines=list,
        step_deadline_s=60.0,
    )
    with caplog.at_level(logging.ERROR):
        recorder.engine_lost(EngineLoss("no step for 61 s", "hang"), [])
    recorder.stop()
    assert [record.getMessage() for record in caplog.records] == ["a lost engine could not be written down"]
