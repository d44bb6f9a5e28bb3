"""The messages between the service and its engine.

A frame is a 4-byte little-endian length and one msgpack-encoded message (`wire.py`). The two sides say `Hello`
first and part at once when their `PROTOCOL_VERSION` differs. Every message about a request carries the
`request_id` that the service chose. File descriptors (the KV memfd) travel beside a `LoadModel` frame.

All per-request state of the engine can be rebuilt from `Generate` alone: prompt, ids emitted so far, sampler
settings and seed. The engine keeps nothing that would be lost with it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from magnitude.board.counters import CounterReading
from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.message import Message
from magnitude.engine.session_messages import (
    Compared,
    CompareSession,
    OperatorsProfiled,
    PrepareSession,
    Probe,
    Probed,
    ProfileOperators,
    ReleaseSession,
    SessionPrepared,
    UseSessions,
)
from magnitude.engine.session_spec import SessionSpec
from magnitude.models.description import ModelDescription

PROTOCOL_VERSION = 5
MAX_FRAME_BYTES = 256 * 1024 * 1024  # largest tensor message; a longer length word means a broken stream

FinishReason = Literal["stop", "length", "cancelled", "error"]
# What happens when a slot is full: the answer ends, or the oldest positions behind the attention sinks are dropped.
Overflow = Literal["stop", "slide"]
# "slide" is no graph run: positions of a full slot that were moved.
StepKind = Literal["decode", "prefill", "verify", "slide", "encode", "tensors"]


# --- both ways ---


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """`not_counted`: what the processor does not count for the engine, and why."""

    protocol_version: int
    software_version: str
    pid: int
    ort_version: str = ""
    providers: tuple[str, ...] = ()
    cpu_features: tuple[str, ...] = ()
    not_counted: dict[str, str] = msgspec.field(default_factory=dict)


# --- service to engine ---


class SamplerSettings(Message, frozen=True, kw_only=True, tag="sampler"):
    """How the next token is drawn. `temperature` 0 is greedy. Neutral values switch a step off."""

    temperature: float = 0.3
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    seed: int = 0  # unsigned 64 bit; with the position it keys the counter-based generator


class GrammarSpec(Message, frozen=True, kw_only=True, tag="grammar"):
    """What the output must match: `text` is a JSON schema, a regular expression or a Lark grammar."""

    kind: Literal["json_schema", "regex", "lark"]
    text: str


class LoadModel(Message, frozen=True, kw_only=True, tag="load"):
    """Load a model. For a decoder one file descriptor (the KV memfd) comes with the frame.

    `max_batch` generations decode together at most. While any of them decodes, a prompt enters in pieces that keep
    a step under `max_inter_token_ms`. `draft` is a second decoder that drafts for this one.
    """

    request_id: int
    model: ModelDescription
    threads: int
    kv: KvLayout | None = None
    max_batch: int = 1
    max_inter_token_ms: float = 50.0
    draft: ModelDescription | None = None


class UnloadModel(Message, frozen=True, kw_only=True, tag="unload"):
    request_id: int
    model: str


class LoadAdapter(Message, frozen=True, kw_only=True, tag="load_adapter"):
    """Map a LoRA adapter of a loaded model, whose graph must be the one with adapter inputs. Answered by `Done`.

    `folder` holds the matrices, whose sha256 is `adapter_hash`. Positions in a KV slot that were computed with the
    adapter are keyed by `models.adapters.kv_hash(model_hash, adapter_hash)`.
    """

    request_id: int
    model: str
    name: str
    folder: str
    adapter_hash: str


class UnloadAdapter(Message, frozen=True, kw_only=True, tag="unload_adapter"):
    """Forget an adapter. Refused while a generation with it is open. Answered by `Done`."""

    request_id: int
    model: str
    name: str


class SlotContents(msgspec.Struct, frozen=True, kw_only=True):
    """All that a slot holds, as the service has it on record: `tokens` positions whose ids hash to `ids_hash`
    (`engine.kv.extend_hash`)."""

    tokens: int
    ids_hash: int


class Generate(Message, frozen=True, kw_only=True, tag="generate"):
    """Run one generation in KV slot `slot`.

    `emitted` are ids that an earlier engine already delivered; they are not sent again. The generation ends at
    one of `stop_ids` (which is delivered), after `max_new_tokens` in total, at the slot's end unless `overflow` is
    "slide", or at a `CancelRequest`.

    `kv_valid_tokens` positions are already right (0: compute everything). They lie in the slot itself, or in
    `kv_copy_from`, from where they are copied when this message is handled. `kv_holds` is the record of all that
    the source slot holds, which the engine compares with the slot's header; None: the source holds the beginning
    of this generation's own ids.
    """

    request_id: int
    model: str
    slot: int
    prompt: list[int]
    emitted: list[int] = msgspec.field(default_factory=list)
    max_new_tokens: int
    sampler: SamplerSettings
    grammar: GrammarSpec | None = None
    stop_ids: tuple[int, ...] = ()
    logprobs: int | None = None  # None: none; n: the chosen token's and the n best (n may be 0)
    prefill_chunk: int = 128
    kv_valid_tokens: int = 0
    kv_holds: SlotContents | None = None
    kv_copy_from: int | None = None
    adapter: str = ""  # "": the base model alone
    max_draft: int = 0  # most tokens drafted ahead of one verification; 0: plain decoding
    overflow: Overflow = "stop"


class Embed(Message, frozen=True, kw_only=True, tag="embed"):
    """Run an encoder on `inputs` (token ids with their special tokens). Answered by `Vectors`.

    `token_types` runs beside `inputs` (for pairs); empty means all zero.
    """

    request_id: int
    model: str
    inputs: list[list[int]]
    token_types: list[list[int]] = msgspec.field(default_factory=list)


class EmbedAndRank(Message, frozen=True, kw_only=True, tag="embed_and_rank"):
    """Rank `documents` (token ids with their special tokens) by the cosine of their vectors to the `query`'s.
    Answered by `Ranked`; vectors stay in the engine."""

    request_id: int
    model: str
    query: list[int]
    documents: list[list[int]]
    top_k: int


class Tensor(Message, frozen=True, kw_only=True, tag="tensor"):
    """A plain tensor: `data` is C-ordered, little-endian; `dtype` is NumPy's name (strings are not carried)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class InferTensors(Message, frozen=True, kw_only=True, tag="infer"):
    """Run any ONNX model: tensors in, tensors out. Answered by `TensorsOut`."""

    request_id: int
    model: str
    inputs: list[Tensor]
    outputs: list[str] = msgspec.field(default_factory=list)  # empty: all


class CancelRequest(Message, frozen=True, kw_only=True, tag="cancel"):
    """Stop `target` within one token or one prefill chunk. A request that is already over is ignored."""

    target: int


class Measure(Message, frozen=True, kw_only=True, tag="measure"):
    """Time decode steps of each batch size in `rows`, all rows in `slot`; nothing else may be open. Answered by
    `Measured`. What the slot held is lost."""

    request_id: int
    model: str
    slot: int
    rows: tuple[int, ...]
    past_tokens: int = 128
    steps: int = 8


class GetStats(Message, frozen=True, kw_only=True, tag="get_stats"):
    request_id: int


class Trim(Message, frozen=True, kw_only=True, tag="trim"):
    """Give back what is not needed: caches that can be filled again, freed heap. There is no answer."""

    request_id: int


class Pace(Message, frozen=True, kw_only=True, tag="pace"):
    """Compute for a share of the time only: after a run the engine pauses until the shares, above 0 and at most 1,
    are kept. `decode` goes for decode steps and verifications, `prefill` for all other runs. It holds until the next
    one; a new engine computes all the time. There is no answer."""

    request_id: int
    prefill: float
    decode: float


class Drain(Message, frozen=True, kw_only=True, tag="drain"):
    """Finish what is open, take nothing new; answered by `Drained`."""

    request_id: int


class Shutdown(Message, frozen=True, kw_only=True, tag="shutdown"):
    """Leave now; open requests are lost to the engine (the service still holds them)."""


# --- engine to service ---


class TensorInfo(Message, frozen=True, kw_only=True, tag="tensor_info"):
    """Name, type and shape of a graph input or output; -1 stands for a free dimension."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Loaded(Message, frozen=True, kw_only=True, tag="loaded"):
    request_id: int
    model: str
    load_s: float
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    draft_failure: str = ""  # why the model runs without the draft model that was asked for


class Done(Message, frozen=True, kw_only=True, tag="done"):
    """The request is over and has no other answer (unload)."""

    request_id: int


class Failed(Message, frozen=True, kw_only=True, tag="failed"):
    """The request is over; the fields are those of `MagnitudeError`. `request_fault`: what was asked is wrong,
    not the model or the engine."""

    request_id: int
    code: str
    message: str
    hint: str = ""
    param: str | None = None
    permanent: bool = False
    request_fault: bool = False


class TokenLogprob(Message, frozen=True, kw_only=True, tag="lp"):
    """Log probability of the chosen token after the sampler's masks and penalties, and the best alternatives."""

    logprob: float
    top: list[tuple[int, float]] = msgspec.field(default_factory=list)


class Tokens(Message, frozen=True, kw_only=True, tag="tokens"):
    """New ids of a generation, in order. `logprobs` is empty or as long as `ids`."""

    request_id: int
    ids: list[int]
    logprobs: list[TokenLogprob] = msgspec.field(default_factory=list)


class PrefillProgress(Message, frozen=True, kw_only=True, tag="prefill"):
    """`done_tokens` of the prompt are in the KV cache; `kept_tokens` positions were there before this run."""

    request_id: int
    done_tokens: int
    total_tokens: int
    kept_tokens: int = 0


class Finished(Message, frozen=True, kw_only=True, tag="finished"):
    """A generation is over; times are the engine's own. The slot's header says what the slot holds now."""

    request_id: int
    reason: FinishReason
    prompt_tokens: int
    new_tokens: int
    wait_s: float  # from receiving `Generate` to its first step
    prefill_s: float
    decode_s: float
    cached_tokens: int = 0  # positions of the prompt that were not computed
    mean_batch: float = 0.0  # generations in a decode step of this one, on average
    drafted_tokens: int = 0
    accepted_tokens: int = 0  # of those drafted
    slid_tokens: int = 0  # positions dropped by a sliding window
    kept_tokens: int = 0  # positions, of the prompt and of what was emitted before, that were not computed again


class StepGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Graph runs of one shape since the last report: `rows` sequences of `tokens` new positions each, which
    above 8 are rounded up to a power of two; `positions` is how many they were in all. `session`: the one that
    ran them, None: the model's own."""

    model: str
    session: SessionSpec | None = None
    kind: StepKind
    rows: int
    tokens: int
    runs: int
    total_s: float
    max_s: float
    positions: int = 0


class Steps(Message, frozen=True, kw_only=True, tag="steps"):
    """What the runs of the last moments took; sent about twice a second while there are any. Pauses between them
    are in no run's time; `paused_s` is what they add up to."""

    groups: list[StepGroup]
    paused_s: float = 0.0


class Measured(Message, frozen=True, kw_only=True, tag="measured"):
    """Shortest time of a decode step by number of rows, in the order asked."""

    request_id: int
    step_s: tuple[float, ...]
    verifies_exactly: bool = False  # whether several tokens in one run gave the very logits that they give one by one


class Vectors(Message, frozen=True, kw_only=True, tag="vectors"):
    """`count` rows of `width` little-endian float32: embeddings, or scores with width 1."""

    request_id: int
    count: int
    width: int
    data: bytes
    run_s: float


class Ranked(Message, frozen=True, kw_only=True, tag="ranked"):
    """Which documents come first, and their cosines, best first."""

    request_id: int
    indices: list[int]
    scores: list[float]
    run_s: float


class TensorsOut(Message, frozen=True, kw_only=True, tag="tensors_out"):
    request_id: int
    outputs: list[Tensor]
    run_s: float


class PoolUse(msgspec.Struct, frozen=True, kw_only=True):
    """Heap that encoder runs leave behind for the next one. `held_bytes`: now; `needed_bytes`: what the next runs
    are expected to need; `peak_bytes` and `mean_bytes`: over all runs so far; `trims`: how often memory was given
    back."""

    held_bytes: int = 0
    needed_bytes: int = 0
    peak_bytes: int = 0
    mean_bytes: int = 0
    runs: int = 0
    trims: int = 0

    @property
    def peak_to_mean(self) -> float:
        """1 for steady runs; high where a few large ones set the memory."""
        return self.peak_bytes / self.mean_bytes if self.mean_bytes else 1.0


class Stats(Message, frozen=True, kw_only=True, tag="stats"):
    """The engine now. `sessions`: further ones of all models, which took `session_bytes` when they were made."""

    request_id: int
    rss_bytes: int
    anon_bytes: int
    open_requests: int
    steps: int
    models: tuple[str, ...]
    run_pool: PoolUse = PoolUse()
    sessions: int = 0
    session_bytes: int = 0


class Drained(Message, frozen=True, kw_only=True, tag="drained"):
    request_id: int


class Heartbeat(Message, frozen=True, kw_only=True, tag="heartbeat"):
    """Sent twice a second by a thread of its own. `steps` counts finished graph runs: *that* is progress; the
    message itself only says that the process breathes. `busy_s` is the age of the run under way (0: idle). `paused`:
    no run is under way because the pace does not allow one yet. `counted` is what the processor counted for the
    engine since it started; None: nothing is counted. `sessions`: further ones of all models, which took
    `session_bytes` when they were made."""

    steps: int
    open_requests: int
    busy_s: float
    rss_bytes: int
    run_pool: PoolUse = PoolUse()
    paused: bool = False
    sessions: int = 0
    session_bytes: int = 0
    counted: CounterReading | None = None


ToEngine = (
    Hello
    | LoadModel
    | UnloadModel
    | LoadAdapter
    | UnloadAdapter
    | Generate
    | Embed
    | EmbedAndRank
    | InferTensors
    | CancelRequest
    | Measure
    | GetStats
    | Trim
    | Pace
    | PrepareSession
    | ReleaseSession
    | UseSessions
    | CompareSession
    | Probe
    | ProfileOperators
    | Drain
    | Shutdown
)
ToService = (
    Hello
    | Loaded
    | Done
    | Failed
    | Tokens
    | PrefillProgress
    | Finished
    | Steps
    | Measured
    | Vectors
    | Ranked
    | TensorsOut
    | Stats
    | Drained
    | Heartbeat
    | SessionPrepared
    | Compared
    | Probed
    | OperatorsProfiled
)
