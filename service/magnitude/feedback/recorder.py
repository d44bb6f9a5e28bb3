"""What a running service writes down: rows of tasks, bundles of lost engines; and what it starts with from before."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from magnitude import __version__
from magnitude.board.boot import Clocks
from magnitude.config.records import RecordsSettings
from magnitude.engine.protocol import Heartbeat, Hello
from magnitude.errors import MagnitudeError
from magnitude.feedback.bundles import FOLDER, ServedModel, Victim
from magnitude.feedback.circumstances import ChosenBy, CircumstanceView, PlanFacts
from magnitude.feedback.decisions import DecisionRow, row_of
from magnitude.feedback.failures import FailureLimits, FailureLog, Surroundings
from magnitude.feedback.peaks import Peaks
from magnitude.feedback.record_file import DAY_S, RecordLimits
from magnitude.feedback.record_store import RecordStore
from magnitude.feedback.records import Feedback, TaskRow
from magnitude.governor.decision import Decision
from magnitude.governor.memory_ladder import Step
from magnitude.governor.memory_sight import MemorySight
from magnitude.governor.memory_state import MemoryState
from magnitude.policy.strategy import Strategy
from magnitude.policy.terms import BoardSeen, Decided
from magnitude.supervise.loss import EngineLoss

log = logging.getLogger(__name__)

RECORDS_FILE = "records.db"
# Rows that are looked through at start for what the running picture begins with. A board serves a handful of models,
# ten tasks of each are taken.
LOOKED_THROUGH = 500
# Tasks that end within this time met the same board: the engine's heartbeats, by which strategies look at it, come as
# often. To put together what is seen of eight cores took 17 µs, half of what a task's record took twice over.
BOARD_HOLDS_S = 0.5


class EngineSeen(Protocol):
    """What is told of the engine."""

    @property
    def heartbeat(self) -> Heartbeat | None: ...

    @property
    def hello(self) -> Hello | None: ...


class MemorySeen(Protocol):
    """What is told of memory, as it was seen last."""

    @property
    def sight(self) -> MemorySight: ...

    @property
    def step(self) -> str: ...

    def state(self) -> MemoryState: ...


class Recorder:
    """Built by the service and asked by it. `feedback` is where tasks are told; `store` is None when none are to be
    kept."""

    def __init__(
        self,
        state: Path,
        settings: RecordsSettings,
        *,
        engine: EngineSeen,
        restarts: Callable[[], int],
        load: Callable[[], tuple[int, int]],
        plan: Callable[[str], PlanFacts | None],
        models: Callable[[], Sequence[ServedModel]],
        memory: Callable[[], MemorySeen],
        last_lines: Callable[[], Sequence[str]],
        step_deadline_s: float,
        temperature_c: Callable[[], float | None] = lambda: None,
        throttled: Callable[[], bool | None] = lambda: None,
        board: Callable[[], BoardSeen | None] = lambda: None,
        chosen: Callable[[str], ChosenBy] = lambda model: ChosenBy(),
        clocks: Clocks | None = None,
    ) -> None:
        """`load` gives waiting and running requests, `plan` how the model of a name runs now, `models` all that it
        takes to run each of them in the same way; `throttled` whether anything holds the board back now, `board` how
        the loop sees it, `chosen` the strategy in force for the model of a name."""
        self._clocks = clocks = clocks or Clocks()
        self._throttled_now = throttled
        self._board_now = board
        self._board_seen: tuple[float, BoardSeen | None] = (-math.inf, None)
        self._engine_rss_bytes, self._throttled = Peaks(), Peaks()
        self._engine = engine
        self._plan = plan
        self._onnxruntime = ""
        self._circumstances = CircumstanceView(
            plan=plan,
            load=load,
            restarts=restarts,
            engine_rss_bytes=lambda: engine.heartbeat.rss_bytes if engine.heartbeat else None,
            memory=lambda: memory().sight,
            memory_step=lambda: memory().step,
            temperature_c=temperature_c,
            board=self._board,
            chosen=chosen,
            throttled=self._throttled_within,
        )
        self.store: RecordStore | None = None
        if settings.max_bytes:
            self.store = RecordStore(state / RECORDS_FILE, record_limits(settings), clocks=clocks)
        keep: Callable[[TaskRow], None] | None = self.store.add if self.store is not None else None
        self.feedback = Feedback(
            circumstances=self._circumstances.of,
            peak_rss_bytes=self._peak_rss_bytes_within,
            heat=lambda: seen.heat if (seen := self._board()) is not None else None,
            keep=keep,
            clocks=clocks,
        )
        self.failures = FailureLog(
            state / FOLDER,
            failure_limits(settings),
            Surroundings(
                models=models,
                circumstances=lambda: self._circumstances.of(""),
                last_lines=last_lines,
                figures=self.feedback.runs.figures,
                versions=self._versions,
                memory=lambda: memory().state(),
                headroom_bytes=lambda: memory().sight.room_bytes,
                step_deadline_s=step_deadline_s,
            ),
            clocks=clocks,
        )
        self._restoring: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self.store is not None:
            self.store.start()

    def beat(self, heartbeat: Heartbeat) -> None:
        """The engine breathes: twice a second."""
        now_s = self._clocks.monotonic()
        self._engine_rss_bytes.add(heartbeat.rss_bytes, now_s)
        throttled = self._throttled_now()
        if throttled is not None:
            self._throttled.add(throttled, now_s)
        self.failures.beat(heartbeat)

    def decided(self, decided: Decided, model: str, strategy: Strategy | None = None) -> None:
        """Keep a decision of the strategy loop about `model`, made while `strategy` was in force."""
        self._keep_decision(row_of(decided, model, self._clocks.now(), strategy))

    def board_decided(self, decision: Decision) -> None:
        """Keep a decision about heat, clocks or supply."""
        self._keep_decision(
            DecisionRow(
                stamp=self._clocks.now(),
                source=decision.source,
                kind=decision.kind,
                what=decision.what,
                reason=decision.reason,
            )
        )

    def memory_step_taken(self, step: Step, what: str, reason: str) -> None:
        """Keep a step against a shortage of memory."""
        self._keep_decision(
            DecisionRow(stamp=self._clocks.now(), source="memory", kind=step, what=what, reason=reason)
        )

    def engine_up(self) -> None:
        """An engine serves. With the first one the running picture begins, with what is known from before."""
        hello = self._engine.hello
        self._onnxruntime = hello.ort_version if hello is not None else self._onnxruntime
        if self._restoring is None and self.store is not None:
            self._restoring = asyncio.get_running_loop().create_task(self._restore(self.store))

    def engine_lost(self, loss: EngineLoss, victims: Sequence[Victim]) -> None:
        """Nothing that goes wrong here may keep the next engine from being started."""
        try:
            self.failures.engine_lost(loss, victims)
        except Exception:
            log.exception("a lost engine could not be written down")

    def stop(self) -> None:
        """Write what waits. Blocks, for seconds at most."""
        if self._restoring is not None:
            self._restoring.cancel()
        if self.store is not None:
            self.store.stop()
        self.failures.close()

    def storage_off(self) -> list[str]:
        """Why something is not kept, a sentence each."""
        found = []
        if self.store is not None and self.store.off:
            found.append(f"records of tasks are not kept: {self.store.off}")
        if self.failures.off:
            found.append(f"failures are not written down: {self.failures.off}")
        return found

    # --- inside ---

    def _keep_decision(self, row: DecisionRow) -> None:
        if self.store is not None:
            self.store.add_decision(row)

    def _board(self) -> BoardSeen | None:
        seen_s, seen = self._board_seen
        now_s = self._clocks.monotonic()
        if now_s - seen_s >= BOARD_HOLDS_S:
            seen = self._board_now()
            self._board_seen = (now_s, seen)
        return seen

    def _peak_rss_bytes_within(self, ran_s: float) -> int | None:
        peak = self._engine_rss_bytes.since(self._clocks.monotonic() - ran_s)
        return int(peak) if peak is not None else None

    def _throttled_within(self, ran_s: float) -> bool | None:
        peak = self._throttled.since(self._clocks.monotonic() - ran_s)
        return bool(peak) if peak is not None else None

    def _versions(self) -> dict[str, str]:
        return {**program_versions(), "onnxruntime": self._onnxruntime}

    async def _restore(self, store: RecordStore) -> None:
        def plan_id_of(model: str) -> str:
            facts = self._plan(model)
            return facts.plan_id if facts is not None else ""

        await store.opened()
        try:
            rows = await store.recent(LOOKED_THROUGH, ("ok",))
        except MagnitudeError as error:
            log.warning("earlier records cannot be read", extra={"fields": {"why": error.message}})
            return
        restored = self.feedback.restore(rows, plan_id_of)
        if restored:
            log.info("running figures begin with earlier tasks", extra={"fields": {"tasks": restored}})


def program_versions() -> dict[str, str]:
    """What runs here, as far as this process knows it."""
    system = os.uname()
    return {
        "magnitude": __version__,
        "python": platform.python_version(),
        "kernel": system.release,
        "machine": system.machine,
        "libc": " ".join(platform.libc_ver()),
    }


def record_limits(settings: RecordsSettings) -> RecordLimits:
    return RecordLimits(
        max_bytes=settings.max_bytes,
        keep_s=settings.keep_days * DAY_S,
        reserve_bytes=settings.free_disk_reserve_bytes,
    )


def failure_limits(settings: RecordsSettings) -> FailureLimits:
    return FailureLimits(
        max_bytes=settings.failures_max_bytes,
        keep_s=settings.keep_days * DAY_S,
        reserve_bytes=settings.free_disk_reserve_bytes,
        keep_content=settings.keep_content,
    )
