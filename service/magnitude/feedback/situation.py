"""What a task met: how full the service was, how the model ran, how much memory there was."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cached_property

import msgspec

from magnitude.governor.memory_sight import MemorySight


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
    """The moment at which a task ended. `memory_headroom_bytes`: the least that was left anywhere; `memory_step`: how
    far the governor had gone about a shortage. None: nobody measures it here."""

    queue_depth: int = 0
    running: int = 0
    engine_restarts: int = 0
    engine_rss_bytes: int | None = None
    memory_headroom_bytes: int | None = None
    memory_limit_bytes: int | None = None
    memory_step: str = ""
    temperature_c: float | None = None
    plan: PlanFacts | None = None


class Situations:
    """Puts the situation together from those who know its parts. Called on the event loop, once a task: nobody who is
    asked reads anything."""

    def __init__(
        self,
        *,
        plan: Callable[[str], PlanFacts | None],
        load: Callable[[], tuple[int, int]],
        restarts: Callable[[], int],
        engine_rss_bytes: Callable[[], int | None],
        memory: Callable[[], MemorySight],
        memory_step: Callable[[], str],
        temperature_c: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`load` gives waiting and running requests, `plan` how a model of that name runs, `memory` what was seen of
        it last."""
        self._plan = plan
        self._load = load
        self._restarts = restarts
        self._engine_rss_bytes = engine_rss_bytes
        self._memory = memory
        self._memory_step = memory_step
        self._temperature_c = temperature_c

    def of(self, model: str) -> Situation:
        memory = self._memory()
        waiting, running = self._load()
        return Situation(
            queue_depth=waiting,
            running=running,
            engine_restarts=self._restarts(),
            engine_rss_bytes=self._engine_rss_bytes(),
            memory_headroom_bytes=memory.room_bytes,
            memory_limit_bytes=memory.limit_bytes,
            memory_step=self._memory_step(),
            temperature_c=self._temperature_c(),
            plan=self._plan(model),
        )
