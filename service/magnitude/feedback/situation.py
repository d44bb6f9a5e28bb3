"""What a task met: how full the service was, how the model ran, how much memory there was."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from functools import cached_property

import msgspec

from magnitude.board.memory import MemorySnapshot

# Reading the memory of all control groups takes a few tenths of a millisecond; within so many seconds a task more or
# less does not change the picture.
MEMORY_FRESH_S = 5.0


class PlanFacts(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """How a model is run: everything that its speed depends on."""

    model: str
    model_hash: str
    graph_file: str
    threads: int
    max_batch: int
    kv_type: str = ""
    context_tokens: int = 0
    prefill_chunk_tokens: int = 0
    max_draft_tokens: int = 0
    draft_model: str = ""

    @cached_property
    def plan_id(self) -> str:
        """The same for the same facts, over restarts too."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """The moment at which a task ended. None: nobody measures it here."""

    queue_depth: int = 0
    running: int = 0
    engine_restarts: int = 0
    engine_rss_bytes: int | None = None
    memory_headroom_bytes: int | None = None
    memory_limit_bytes: int | None = None
    temperature_c: float | None = None
    plan: PlanFacts | None = None


class EngineFigures(msgspec.Struct, frozen=True, kw_only=True):
    restarts: int = 0
    rss_bytes: int | None = None


class Situations:
    """Puts the situation together from those who know its parts. Called on the event loop, once a task."""

    def __init__(
        self,
        *,
        plan: Callable[[str], PlanFacts | None],
        load: Callable[[], tuple[int, int]],
        engine: Callable[[], EngineFigures],
        memory: Callable[[], MemorySnapshot],
        temperature_c: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`load` gives waiting and running requests, `plan` how a model of that name runs."""
        self._plan = plan
        self._load = load
        self._engine = engine
        self._read_memory = memory
        self._temperature_c = temperature_c
        self._clock = clock
        self._memory: MemorySnapshot | None = None
        self._read_at_s = 0.0

    def memory(self) -> MemorySnapshot:
        """Not older than `MEMORY_FRESH_S`."""
        now_s = self._clock()
        if self._memory is None or now_s - self._read_at_s >= MEMORY_FRESH_S:
            self._memory, self._read_at_s = self._read_memory(), now_s
        return self._memory

    def of(self, model: str) -> Situation:
        memory, engine = self.memory(), self._engine()
        waiting, running = self._load()
        return Situation(
            queue_depth=waiting,
            running=running,
            engine_restarts=engine.restarts,
            engine_rss_bytes=engine.rss_bytes,
            memory_headroom_bytes=memory.headroom_bytes,
            memory_limit_bytes=memory.limit_bytes,
            temperature_c=self._temperature_c(),
            plan=self._plan(model),
        )
