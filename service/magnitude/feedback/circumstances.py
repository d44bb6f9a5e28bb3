"""What a task met: how full the service was, how the model ran, how much memory there was, what limited the board."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cached_property

import msgspec

from magnitude.governor.memory_sight import MemorySight
from magnitude.policy.situation import Situation
from magnitude.policy.strategy import Strategy
from magnitude.policy.terms import BoardSeen


class PlanFacts(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """How a model is run: everything that its speed depends on and that holds until it is loaded anew. `board` is
    named as strategies are bound to it; it and `ort_version` are empty, `weight_bytes` 0 where nobody told."""

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
    board: str = ""
    ort_version: str = ""
    weight_bytes: int = 0

    @cached_property
    def plan_id(self) -> str:
        """The same for the same facts, over restarts too."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]


class ChosenBy(msgspec.Struct, frozen=True, kw_only=True):
    """How work is run at this moment, and for what it was chosen. None: nobody chooses. `field_test` names the field
    test that this device takes part in, `arm` its side of it."""

    strategy: Strategy | None = None
    situation: Situation | None = None
    field_test: str = ""
    arm: str = ""


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """The moment at which a task ended. `memory_headroom_bytes`: the least that was left anywhere; `memory_step`: how
    far the governor had gone about a shortage; `throttled`: whether firmware, heat or supply held the board back at
    any moment while the task ran; `clock_share` is what limits in force left of the highest clock, `cores` how many
    the engine might use at once. `chosen` is the situation for which `strategy` was in force. None: nobody measures
    it here, or nobody chooses."""

    queue_depth: int = 0
    running: int = 0
    engine_restarts: int = 0
    engine_rss_bytes: int | None = None
    memory_headroom_bytes: int | None = None
    memory_limit_bytes: int | None = None
    memory_step: str = ""
    temperature_c: float | None = None
    throttled: bool | None = None
    clock_share: float | None = None
    cores: int | None = None
    field_test: str = ""
    arm: str = ""
    plan: PlanFacts | None = None
    strategy: Strategy | None = None
    chosen: Situation | None = None


class CircumstanceView:
    """Puts the circumstances together from those who know their parts. Called on the event loop, once a task: nobody
    who is asked reads anything."""

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
        board: Callable[[], BoardSeen | None] = lambda: None,
        chosen: Callable[[str], ChosenBy] = lambda model: ChosenBy(),
        throttled: Callable[[float], bool | None] = lambda ran_s: None,
    ) -> None:
        """`load` gives waiting and running requests, `plan` and `chosen` how a model of that name runs, `memory` what
        was seen of it last, `throttled` whether the board was held back in the last seconds."""
        self._plan = plan
        self._load = load
        self._restarts = restarts
        self._engine_rss_bytes = engine_rss_bytes
        self._memory = memory
        self._memory_step = memory_step
        self._temperature_c = temperature_c
        self._board = board
        self._chosen = chosen
        self._throttled = throttled

    def of(self, model: str, ran_s: float = 0.0) -> Circumstances:
        """Now, for a task that ran for the last `ran_s`."""
        memory, board, chosen = self._memory(), self._board(), self._chosen(model)
        waiting, running = self._load()
        return Circumstances(
            queue_depth=waiting,
            running=running,
            engine_restarts=self._restarts(),
            engine_rss_bytes=self._engine_rss_bytes(),
            memory_headroom_bytes=memory.room_bytes,
            memory_limit_bytes=memory.limit_bytes,
            memory_step=self._memory_step(),
            temperature_c=self._temperature_c(),
            throttled=self._throttled(ran_s),
            clock_share=board.clock_share if board is not None else None,
            cores=board.usable if board is not None else None,
            field_test=chosen.field_test,
            arm=chosen.arm,
            plan=self._plan(model),
            strategy=chosen.strategy,
            chosen=chosen.situation,
        )
