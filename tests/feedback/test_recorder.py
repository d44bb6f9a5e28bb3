from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec
import pytest

from magnitude.config.records import RecordsSettings
from magnitude.engine.protocol import Heartbeat, Hello
from magnitude.feedback.bundles import ServedModel
from magnitude.feedback.circumstances import ChosenBy
from magnitude.feedback.recorder import Recorder
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


def test_a_task_is_kept_with_what_its_engine_and_board_met_while_it_ran(tmp_path: Path) -> None:
    clocks, throttled = MovingClocks(), False
    recorder = Recorder(
        tmp_path,
        RecordsSettings(free_disk_reserve_bytes=0),
        engine=Silent(),
        restarts=lambda: 0,
        load=lambda: (0, 0),
        plan=lambda name: None,
        models=list,
        memory=Silent,
        last_lines=list,
        step_deadline_s=60.0,
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
