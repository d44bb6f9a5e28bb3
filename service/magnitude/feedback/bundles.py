"""What a lost engine leaves behind: one JSON file a loss, with what it takes to try the same again.

`failures/000042-hang.json`: a number that grows with each loss, so that their order is known without a clock, and how
the engine ended. The file appears whole or not at all and carries a checksum. Without `records.keep_content` it says
of a request how long its prompt was and how it was to be answered, never a token of it.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from magnitude.board.boot import Stamp
from magnitude.engine.message import Message
from magnitude.engine.protocol import Embed, EmbedAndRank, Generate, InferTensors, SamplerSettings, StepGroup
from magnitude.errors import MagnitudeError
from magnitude.feedback.circumstances import Circumstances, PlanFacts
from magnitude.feedback.run_series import RunFigures
from magnitude.governor.memory_state import MemoryState
from magnitude.models.adapters import AdapterDescription
from magnitude.models.description import ModelDescription
from magnitude.persist import Unusable, sealed, unsealed
from magnitude.supervise.loss import EngineLoss

SCHEMA = 1
FOLDER = "failures"
# A file that is larger was not written by us: with content a bundle is cut at a quarter of this.
MAX_READ_BYTES = 32 * 1024 * 1024
_NAME = re.compile(r"(\d{6,})-[a-z]+\.json")

WorkMessage = Generate | Embed | EmbedAndRank | InferTensors


class BundleRefused(MagnitudeError):
    """There is no such bundle, or it cannot be used."""

    code = "bundle_refused"
    permanent = True


class Victim(msgspec.Struct, frozen=True, kw_only=True):
    """A request that an engine held when it was lost. `message`: what the engine was told; `cached_tokens` of the
    prompt were in its slot already; `strikes`: engines that were lost with it before; `refused`: it is not tried
    again."""

    request_id: int
    model: str
    kind: Literal["generate", "embed", "infer"]
    prompt_tokens: int
    emitted_tokens: int
    message: Message
    cached_tokens: int = 0
    strikes: int = 0
    refused: bool = False


class TensorShape(msgspec.Struct, frozen=True, kw_only=True):
    """An input of a plain tensor run. `dtype` is NumPy's name."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class RequestShape(msgspec.Struct, frozen=True, kw_only=True):
    """A request without its content. `input_tokens`: the length of each text of an encoder run, the query first;
    `tensors`: the inputs of a tensor run. `ids_hash` tells equal prompts from others."""

    request_id: int
    model: str
    kind: Literal["generate", "embed", "infer"]
    message: str
    prompt_tokens: int = 0
    emitted_tokens: int = 0
    cached_tokens: int = 0
    strikes: int = 0
    refused: bool = False
    ids_hash: str = ""
    max_new_tokens: int = 0
    sampler: SamplerSettings | None = None
    grammar: str = ""
    grammar_chars: int = 0
    logprobs: int | None = None
    prefill_chunk: int = 0
    max_draft: int = 0
    adapter: str = ""
    overflow: Literal["stop", "slide"] = "stop"
    input_tokens: list[int] = []
    top_k: int = 0
    tensors: list[TensorShape] = []


class FailedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`content` is the message to the engine itself, where it is kept."""

    shape: RequestShape
    content: WorkMessage | None = None


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model as the engine had it: enough to load it in the same way."""

    description: ModelDescription
    facts: PlanFacts
    slots: int
    max_inter_token_ms: float
    draft: ModelDescription | None = None
    adapters: tuple[AdapterDescription, ...] = ()


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """One of the last moments: the engine's heartbeat, and how much memory was left around it."""

    at_s: float
    steps: int
    open_requests: int
    busy_s: float
    rss_bytes: int
    headroom_bytes: int | None = None


class RunsSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Graph runs that the engine reported in one of the last moments."""

    at_s: float
    groups: list[StepGroup]


class FailureBundle(msgspec.Struct, frozen=True, kw_only=True):
    """One loss. `series` and `last_runs` lead up to it, the oldest first; `figures` is what runs usually take,
    `memory` what was seen of it last and done about it."""

    bundle_id: str
    stamp: Stamp
    loss: EngineLoss
    versions: dict[str, str]
    requests: list[FailedRequest]
    models: list[ServedModel]
    circumstances: Circumstances = msgspec.field(name="situation")  # as files of earlier versions name it
    step_deadline_s: float
    memory: MemoryState = MemoryState()
    series: list[Beat] = []
    last_runs: list[RunsSeen] = []
    figures: list[RunFigures] = []
    last_lines: list[str] = []
    notes: list[str] = []

    @property
    def with_content(self) -> bool:
        return any(request.content is not None for request in self.requests)


def shape_of(victim: Victim) -> RequestShape:
    """What is kept of a request in any case."""
    message = victim.message
    shape = RequestShape(
        request_id=victim.request_id,
        model=victim.model,
        kind=victim.kind,
        message=type(message).__name__,
        prompt_tokens=victim.prompt_tokens,
        emitted_tokens=victim.emitted_tokens,
        cached_tokens=victim.cached_tokens,
        strikes=victim.strikes,
        refused=victim.refused,
    )
    match message:
        case Generate():
            grammar = message.grammar
            return msgspec.structs.replace(
                shape,
                ids_hash=_ids_hash([message.prompt]),
                max_new_tokens=message.max_new_tokens,
                # Which tokens a client favours is content; a grammar's text is as well.
                sampler=msgspec.structs.replace(message.sampler, logit_bias={}),
                grammar=grammar.kind if grammar else "",
                grammar_chars=len(grammar.text) if grammar else 0,
                logprobs=message.logprobs,
                prefill_chunk=message.prefill_chunk,
                max_draft=message.max_draft,
                adapter=message.adapter,
                overflow=message.overflow,
            )
        case Embed():
            return msgspec.structs.replace(
                shape, ids_hash=_ids_hash(message.inputs), input_tokens=[len(text) for text in message.inputs]
            )
        case EmbedAndRank():
            texts = [message.query, *message.documents]
            return msgspec.structs.replace(
                shape, ids_hash=_ids_hash(texts), input_tokens=[len(text) for text in texts], top_k=message.top_k
            )
        case InferTensors():
            tensors = [
                TensorShape(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape) for tensor in message.inputs
            ]
            return msgspec.structs.replace(shape, tensors=tensors)
        case _:
            return shape


def content_bytes(message: Message) -> int:
    """About how much room a message takes in a bundle: six characters a token, four for three bytes."""
    match message:
        case Generate():
            return 6 * (len(message.prompt) + len(message.emitted)) + 200
        case Embed():
            return 6 * sum(map(len, message.inputs)) * (2 if message.token_types else 1)
        case EmbedAndRank():
            return 6 * (len(message.query) + sum(map(len, message.documents)))
        case InferTensors():
            return sum(len(tensor.data) for tensor in message.inputs) * 4 // 3
        case _:
            return 0


def without_content(bundle: FailureBundle) -> FailureBundle:
    """What may leave the machine: no request's content, and no hash that a short prompt could be guessed from."""
    requests = [
        FailedRequest(shape=msgspec.structs.replace(request.shape, ids_hash="")) for request in bundle.requests
    ]
    return msgspec.structs.replace(bundle, requests=requests)


def encoded(bundle: FailureBundle) -> bytes:
    return sealed(bundle, schema=SCHEMA)


def file_name(bundle: FailureBundle) -> str:
    return f"{bundle.bundle_id}.json"


def number_of(name: str) -> int | None:
    """The number in a bundle's file name; None for other files."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def bundle_files(folder: Path) -> list[Path]:
    """The bundles in `folder`, oldest first. Raises `OSError`."""
    if not folder.is_dir():
        return []
    numbered = [(number, path) for path in folder.iterdir() if (number := number_of(path.name)) is not None]
    return [path for _, path in sorted(numbered)]


def read_bundle(path: Path) -> FailureBundle:
    """Raises `BundleRefused`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_READ_BYTES + 1)
    except OSError as error:
        raise BundleRefused(
            f"{path} cannot be read: {error.strerror or error}",
            hint="`magnitude failures` lists what there is; the service's files need its user, or sudo",
        ) from error
    if len(data) > MAX_READ_BYTES:
        raise BundleRefused(f"{path} is no bundle: it is larger than {MAX_READ_BYTES >> 20} MiB")
    try:
        return unsealed(data, FailureBundle, schema=SCHEMA)
    except Unusable as why:
        raise BundleRefused(f"{path} cannot be used: {why}") from why


def read_all(folder: Path) -> Iterator[FailureBundle | BundleRefused]:
    """Every bundle in `folder`, oldest first; for one that cannot be used, why. Raises `OSError` for the folder."""
    for path in bundle_files(folder):
        try:
            yield read_bundle(path)
        except BundleRefused as why:
            yield why


def find_bundle(name: str, folder: Path) -> Path:
    """The file that a person means: a path, a bundle's id, or its number. Raises `BundleRefused`."""
    if "/" in name or name.endswith(".json"):
        return Path(name)
    try:
        for path in bundle_files(folder):
            if path.stem == name or (name.isdigit() and number_of(path.name) == int(name)):
                return path
    except OSError as error:
        raise BundleRefused(f"{folder} cannot be read: {error.strerror}", hint="Ask with sudo") from error
    raise BundleRefused(f"there is no bundle {name} in {folder}", hint="`magnitude failures` lists what there is")


def _ids_hash(texts: list[list[int]]) -> str:
    digest = hashlib.sha256()
    for ids in texts:
        digest.update(len(ids).to_bytes(4, "little") + array("q", ids).tobytes())
    return digest.hexdigest()[:16]
