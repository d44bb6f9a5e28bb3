"""What the rest of the service may ask of the models: the seam between `intake` and everything behind it.

`intake` (and later the agent) sees only this interface, so that it is tested against a fake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from magnitude.board.brief import BoardState
from magnitude.board.sim.told import SimulatedState
from magnitude.engine.protocol import (
    FinishReason,
    GrammarSpec,
    Overflow,
    SamplerSettings,
    Tensor,
    TensorInfo,
    TokenLogprob,
)
from magnitude.feedback.counter_sight import CountersState
from magnitude.feedback.operators import OperatorFigures
from magnitude.feedback.records import TaskFigures
from magnitude.feedback.run_series import RunFigures, RunTimes
from magnitude.governor.memory_state import MemoryState
from magnitude.governor.power_state import PowerState
from magnitude.governor.thermal_report import ThermalReport
from magnitude.models.description import ModelDescription
from magnitude.policy.field_test import FieldTest
from magnitude.schedule.figures import ScheduleFigures
from magnitude.schedule.pacing import Shares
from magnitude.schedule.strategy_report import StrategyState
from magnitude.supervise.recovery import Recovery

Priority = Literal["interactive", "normal", "background"]


class Deadline(msgspec.Struct, frozen=True, kw_only=True):
    """When an answer must be complete (`at_s`, monotonic). Missed hard: refused with what was done; missed soft:
    the answer is cut short, as far as `may_cut` allows."""

    at_s: float
    hard: bool = True
    may_cut: tuple[Literal["tokens", "model"], ...] = ("tokens",)


class GenerationTask(msgspec.Struct, frozen=True, kw_only=True):
    """One generation as intake hands it over. Token ids only; text stays outside."""

    request_key: str  # shown in logs and headers
    model: str
    prompt: list[int]
    max_new_tokens: int
    sampler: SamplerSettings
    grammar: GrammarSpec | None = None
    stop_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    client: str = ""  # name of the API key: accounts, fair shares, and whose KV may be reused
    priority: Priority = "normal"
    deadline: Deadline | None = None
    task: str = "chat"  # kind of task, for measured compute and wait times
    conversation: str = ""  # the client's own name for a conversation; "": told by its prefix
    expect: int = 0  # further requests that the client announces to follow this one
    adapter: str = ""
    overflow: Overflow = "stop"
    keep_kv: bool = True  # False: nothing of this request is cached or saved
    save_kv: bool = True  # False: what is cached of it never goes to the disk


class Emission(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens (`reason` None), or the end (`ids` empty, `reason` and the times set)."""

    ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    reason: FinishReason | None = None
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    cached_tokens: int = 0
    slot: int | None = None
    batch: float = 0.0  # generations that decoded together with this one, itself included, on average
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    cut: str = ""  # why the answer was made shorter than asked ("deadline"), "" when it was not
    recoveries: int = 0  # engines that were lost under way
    recomputed_tokens: int = 0  # positions that had to be computed again for it


class Generation(Protocol):
    """A generation under way. Whoever holds it must `cancel()` or read to the end; both may happen.

    `variant` is the variant of the named model that computes it, or its beginning; "": that model itself.
    """

    variant: str

    @property
    def waited_s(self) -> float | None:
        """How long it waited until it was started; None while it waits."""
        ...

    async def next(self) -> Emission:
        """The next emission; the one with a `reason` is the last. Raises a `MagnitudeError` on failure, among them
        `DeadlineExceeded` with what was done by then."""
        ...

    def complete(self) -> None:
        """Nothing more is wanted, though the model would go on: the end follows within one step, with its times."""
        ...

    def cancel(self, why: str) -> None:
        """Stop within one step and free the slot. Safe to call at any time, more than once, and after the end."""
        ...


class VectorsResult(msgspec.Struct, frozen=True, kw_only=True):
    """`rows[i]` are little-endian float32 of `width` values for input i. `batch`: texts that were computed
    together with these, these included, on average; 0 when nobody counted."""

    width: int
    rows: list[bytes]
    queue_s: float
    run_s: float
    batch: float = 0.0
    variant: str = ""  # of the model that was named: the one that computed; "": that model itself


class RankedResult(msgspec.Struct, frozen=True, kw_only=True):
    """Documents that come first, and the cosines of their vectors to the query's, best first."""

    indices: list[int]
    scores: list[float]
    queue_s: float
    run_s: float


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Room that is kept for `granted` requests of `client` to `model` until `until_s` (monotonic). `reason`: why it
    is less than what was asked for, "" when it is not."""

    client: str
    model: str
    granted: int
    until_s: float
    reason: str = ""


class ServiceHealth(msgspec.Struct, frozen=True, kw_only=True):
    """`live`: the loop turns. `ready`: every model that should serve can. `reasons`: why not, or what is
    degraded, in words. `persistence` is off while any of what should outlast a restart cannot be written."""

    live: bool
    ready: bool
    reasons: list[str]
    engine_pid: int | None
    engine_restarts: int
    queue_depth: int
    running: int
    uptime_s: float
    persistence: Literal["on", "off"] = "on"


class VariantState(msgspec.Struct, frozen=True, kw_only=True):
    """A variant of a served model. `outside`: why it is never chosen by itself, "" when it may be."""

    name: str
    precision: str
    weight_bytes: int
    residency: Literal["absent", "loading", "loaded", "unloading"]
    outside: str


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """One served model: how it runs and what it holds. `failure` is empty while it can serve. `residency`: whether
    it is in memory now; `stay`: when it is meant to be."""

    name: str
    kind: str
    family: str
    failure: str
    weight_bytes: int
    threads: int
    slots: int
    context_tokens: int
    kv_type: str | None
    kv_resident_bytes: int
    kv_reserved_bytes: int
    residency: Literal["absent", "loading", "loaded", "unloading"] = "loaded"
    stay: Literal["pinned", "at_start", "on_demand"] = "pinned"
    variant_of: str = ""  # "": a model that clients name
    revived_conversations: int = 0  # found in memory at the start, from the service before


class ServiceState(msgspec.Struct, frozen=True, kw_only=True):
    """What `/v1/magnitude/state` and `magnitude ps` show."""

    version: str
    health: ServiceHealth
    engine_phase: str
    engine_steps: int
    engine_rss_bytes: int
    service_rss_bytes: int
    models: list[ModelState]
    figures: dict[str, TaskFigures]
    figures_by_heat: dict[str, TaskFigures] = {}  # the same by how warm the board was, where that is known
    schedule: ScheduleFigures = ScheduleFigures()
    engine_open_requests: int = 0  # by the engine's own count, at its last heartbeat
    engine_recycles: int = 0  # engines that were replaced on purpose
    engine_recent_losses: int = 0  # engines that were lost unasked within the last quarter of an hour
    engine_last_loss: str = ""  # how the last one ended, of whatever kind
    engine_last_recovery: Recovery | None = None  # what replacing it took
    spare_engine_pid: int | None = None
    spare_engine_ready: bool = False
    runs: list[RunFigures] = []  # what graph runs take, by shape
    run_times: RunTimes = RunTimes()
    memory: MemoryState = MemoryState()
    board: BoardState = BoardState()
    thermal: ThermalReport = ThermalReport()
    power: PowerState = PowerState()
    pace: dict[str, Shares] = {}  # who lets the engine compute for a share of the time only; empty: nobody
    strategy: dict[str, StrategyState] = {}  # by model, how it is run
    operators: list[OperatorFigures] = []  # what kinds of operators take, from sampled profiles
    counters: CountersState = CountersState()  # what the processor counts for the engine
    field_test: FieldTest = FieldTest()
    simulated_board: SimulatedState | None = None  # None: the board is real


class Recycled(msgspec.Struct, frozen=True, kw_only=True):
    """An engine was replaced on request. `engine_pid` None: the next one is not there yet; `took_s` until it served,
    `open_requests` went on with it."""

    reason: str
    engine_pid: int | None
    took_s: float
    open_requests: int


class KeptConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation whose KV is held while it waits: in memory, or saved on disk. Never its text."""

    model: str
    owner: str  # name of the API key
    tokens: int
    size_bytes: int
    where: Literal["memory", "disk"]
    idle_s: float


class Inference(Protocol):
    def models(self) -> Sequence[ModelDescription]:
        """Models that requests are to name, default chat model first."""
        ...

    def model(self, name: str) -> ModelDescription:
        """The model of that name or alias; "" or "default" is the default chat model. Raises `ModelNotFound`."""
        ...

    def variant_states(self, name: str) -> Sequence[VariantState]:
        """Variants of the model `name`, the smallest first."""
        ...

    def context_length(self, name: str) -> int:
        """Positions a request may use (prompt + answer): the KV slot's length for a decoder."""
        ...

    def signature(self, name: str) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
        """Inputs and outputs of the model's graph, for the plain-tensor routes."""
        ...

    async def generate(self, task: GenerationTask) -> Generation:
        """Queue a generation. Raises `Overloaded` at once when the queue is full, `EngineNotReady` when down."""
        ...

    async def embed(
        self,
        model: str,
        inputs: list[list[int]],
        token_types: list[list[int]],
        *,
        request_key: str,
        priority: Priority = "normal",
        deadline: Deadline | None = None,
        client: str = "",
    ) -> VectorsResult:
        """Run an embedder or reranker on token ids (special tokens included). Raises `DeadlineExceeded` at a hard
        deadline; a soft one only orders the queue, since there is nothing to cut."""
        ...

    async def embed_and_rank(
        self,
        model: str,
        query: list[int],
        documents: list[list[int]],
        top_k: int,
        *,
        request_key: str,
        priority: Priority = "normal",
        deadline: Deadline | None = None,
        client: str = "",
    ) -> RankedResult:
        """The `top_k` documents (token ids, special tokens included) whose vectors are nearest to the query's. The
        vectors stay in the engine. Deadlines as with `embed`."""
        ...

    async def infer(
        self,
        model: str,
        inputs: list[Tensor],
        outputs: list[str],
        *,
        request_key: str,
        priority: Priority = "normal",
        deadline: Deadline | None = None,
        client: str = "",
    ) -> list[Tensor]:
        """Plain tensors in, plain tensors out. Deadlines as with `embed`."""
        ...

    def reserve(
        self, client: str, model: str, requests: int, hold_s: float, *, priority: Priority = "normal"
    ) -> Reservation:
        """Keep room for `requests` of `client` to `model` for `hold_s`, in place of what was kept for it before.
        `priority`: the one that they will have."""
        ...

    def release(self, client: str, model: str) -> int:
        """Give a reservation back. Returns how many requests it was still kept for; 0 without one."""
        ...

    def health(self) -> ServiceHealth: ...

    def state(self) -> ServiceState: ...

    async def recycle(self, reason: str) -> Recycled:
        """Replace the engine; what it holds goes on with the next one. Raises `EngineNotReady` when there is none to
        replace."""
        ...

    def kept(self, client: str | None) -> list[KeptConversation]:
        """Conversations of the API key `client` whose KV is held, in memory or on disk; None: of everybody."""
        ...

    async def forget(self, client: str | None, model: str | None = None) -> int:
        """Drop what `kept` shows (of one model, or of all); how many there were. Running requests go on, and nothing
        of them is kept afterwards."""
        ...

    def figures(self) -> ScheduleFigures:
        """Slots, prefixes, conversations: read for every scrape, so it must be quick."""
        ...
