from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from magnitude.config.records import RecordsSettings
from magnitude.engine.protocol import Heartbeat, Hello
from magnitude.feedback.bundles import ServedModel
from magnitude.feedback.circumstances import ChosenBy
from magnitude.feedback.recorder import BOARD_HOLDS_S, Recorder
from magnitude.feedback.records import TaskRecord
from magnitude.governor.decision import Decision
from magnitude.governor.memory_sight import MemorySight
from magnitude.governor.memory_state import MemoryState
from magnitude.policy.terms import BoardSeen, Decided
from magnitude.supervise.loss import EngineLoss
from tests.feedback.record_samples import HOT, STRATEGY, MovingClocks


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


def recorder_in(folder: Path, **fields: Any) -> Recorder:
    """Of a service that does nothing, but for `fields`."""
    values: dict[str, Any] = {
        "engine": Silent(),
        "restarts": lambda: 0,
        "load": lambda: (0, 0),
        "plan": lambda name: None,
        "models": list,
        "memory": Silent,
        "last_lines": list,
        "step_deadline_s": 60.0,
        **fields,
    }
    return Recorder(folder, values.pop("settings", RecordsSettings(free_disk_reserve_bytes=0)), **values)


def test_a_loss_that_cannot_be_written_down_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = recorder_in(tmp_path, settings=RecordsSettings(max_bytes=0), models=no_models)
    with caplog.at_level(logging.ERROR):
        recorder.engine_lost(EngineLoss("no step for 61 s", "hang"), [])
    recorder.stop()
    assert [record.getMessage() for record in caplog.records] == ["a lost engine could not be written down"]


def test_a_task_is_kept_with_what_its_engine_and_board_met_while_it_ran(tmp_path: Path) -> None:
    clocks, throttled = MovingClocks(), False
    recorder = recorder_in(
        tmp_path,
        throttled=lambda: throttled,
        board=lambda: BoardSeen((0, 1), 2, clock_share=0.5),
        chosen=lambda model: ChosenBy(strategy=STRATEGY, situation=HOT),
        clocks=clocks,
    )
    recorder.start()
    assert recorder.store is not None
    asyncio.run(recorder.store.opened())
    for rss_bytes, is_throttled in ((500, True), (100, False), (300, True), (200, False)):
        throttled = is_throttled
        recorder.beat(Heartbeat(steps=1, open_requests=1, busy_s=0.0, rss_bytes=rss_bytes))
        clocks.passes(10.0)
    for run_s in (5.0, 15.0, 35.0):
        recorder.feedback.record(TaskRecord(kind="embed", model="m", outcome="ok", prefill_s=run_s))
    decided = Decided("switch", "decode", "rows=1", "2 threads", "1 thread", "faster", delay_s=4.0, gain=0.2)
    recorder.decided(decided, "m", STRATEGY)
    recorder.board_decided(Decision(source="power", kind="tier", what="full to saving", reason="battery at 20 %"))
    recorder.memory_step_taken("trim", "caches dropped", "97 %")
    history = asyncio.run(recorder.store.history(3600, 100))
    recorder.stop()
    found = [(row.task.peak_rss_bytes, row.circumstances.throttled) for row in history.tasks]
    assert found == [(500, True), (300, True), (200, False)]
    met = history.tasks[0].circumstances
    own = msgspec.structs.replace(HOT, task="embed", tokens=1, rows=1, prefix="none")
    assert (met.clock_share, met.cores, met.strategy, met.chosen) == (0.5, 2, STRATEGY, own)
    assert [(row.source, row.kind, row.what) for row in history.decisions] == [
        ("memory", "trim", "caches dropped"),
        ("power", "tier", "full to saving"),
        ("strategy", "switch", "decode (rows=1): 2 threads to 1 thread"),
    ]
    assert history.decisions[-1].strategy == STRATEGY


def test_the_board_is_looked_at_once_for_tasks_that_end_together(tmp_path: Path) -> None:
    clocks, looked = MovingClocks(), Counter[str]()

    def board() -> BoardSeen:
        looked["at"] += 1
        return BoardSeen((0, 1), 2, heat="hot" if looked["at"] > 1 else "cool")

    recorder = recorder_in(tmp_path, board=board, clocks=clocks)
    task = TaskRecord(kind="embed", model="m", outcome="ok", prefill_s=0.01)
    for _ in range(3):
        recorder.feedback.record(task)
    clocks.passes(BOARD_HOLDS_S)
    recorder.feedback.record(task)
    figures = recorder.feedback.figures_by_heat()
    assert {name: one.count for name, one in figures.items()} == {"embed m cool": 3, "embed m hot": 1}
    assert looked["at"] == 2
