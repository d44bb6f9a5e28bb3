"""Trying again what an engine was lost with: in an engine of its own, the same models, the same requests.

Where a bundle has no content, a request of the same shape stands for the one that was: made-up tokens, as many. All
requests of the bundle are sent together, as they ran together. KV that they found in a slot is computed anew.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from magnitude.engine.client import EngineLink
from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.protocol import (
    Embed,
    EmbedAndRank,
    Failed,
    Finished,
    Generate,
    InferTensors,
    LoadAdapter,
    Loaded,
    LoadModel,
    PrefillProgress,
    SamplerSettings,
    Tensor,
    Tokens,
    ToService,
)
from magnitude.errors import EngineError, MagnitudeError
from magnitude.feedback.bundles import FailedRequest, FailureBundle, RequestShape, ServedModel, WorkMessage
from magnitude.schedule.kv_memory import KvMemory
from magnitude.schedule.loading import LOAD_BASE_S, SLOWEST_READ_BYTES_PER_S
from magnitude.supervise.connected_engine import SpawnEngine
from magnitude.supervise.engine_process import EngineProcess
from magnitude.supervise.lifecycle import EngineLifecycle, LoadFailed, ModelsReady
from magnitude.supervise.loss import EngineLoss
from magnitude.supervise.supervisor import EngineSupervisor

Verdict = Literal["through", "same", "other"]

# Made-up tokens for a model whose vocabulary is not known here: beyond the special tokens, below what the smallest
# vocabulary has.
MADE_UP_IDS = range(5, 25)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try. `through`: the engine lived; `same`: it was lost in the way of the bundle; `other`: in another way.
    `refused`: requests that the engine answered with an error instead, and how."""

    verdict: Verdict
    loss: EngineLoss | None = None
    emitted_tokens: int = 0
    refused: list[str] = []
    last_lines: list[str] = []


def same_way(was: EngineLoss, now: EngineLoss) -> bool:
    """Whether two losses are of one kind: the same cause, and for crashes and exits the same signal or status."""
    return was.cause == now.cause and (was.cause not in ("crash", "left") or was.reason == now.reason)


def requests_of(bundle: FailureBundle) -> tuple[list[WorkMessage], list[str]]:
    """The messages to send, numbered from 1, and what is different about them, in words."""
    messages: list[WorkMessage] = []
    notes: list[str] = []
    served = {model.facts.model: model for model in bundle.models}
    slots: dict[str, int] = {}
    for request_id, request in enumerate(bundle.requests, 1):
        shape = request.shape
        model = served.get(shape.model)
        if model is None:
            notes.append(f"request {shape.request_id} is left out: nothing is known of its model {shape.model}")
            continue
        message = request.content or _made_up(request, model)
        if message is None:
            notes.append(f"request {shape.request_id} is left out: a {shape.message} cannot be made up")
            continue
        if request.content is None:
            notes.append(
                f"request {shape.request_id} is made up: its content was not kept"
                + (", nor its grammar, which is left out" if shape.grammar else "")
            )
        if shape.cached_tokens:
            notes.append(
                f"request {shape.request_id} found {shape.cached_tokens} tokens in its slot; here all are computed"
            )
        if isinstance(message, Generate):
            slot = slots.get(shape.model, 0)
            slots[shape.model] = slot + 1
            message = msgspec.structs.replace(
                message, request_id=request_id, slot=slot, kv_valid_tokens=0, kv_holds=None, kv_copy_from=None
            )
        else:
            message = msgspec.structs.replace(message, request_id=request_id)
        messages.append(message)
    return messages, notes


def models_of(bundle: FailureBundle, messages: Sequence[WorkMessage]) -> list[ServedModel]:
    """The models to load: those of the requests; all of them when the engine was lost without any."""
    names = {message.model for message in messages}
    return [model for model in bundle.models if not names or model.facts.model in names]


async def attempt(
    bundle: FailureBundle,
    messages: Sequence[WorkMessage],
    models: Sequence[ServedModel],
    *,
    spawn: SpawnEngine = EngineProcess.spawn,
) -> Attempt:
    """Try it once. Raises `MagnitudeError` when a model cannot be loaded."""
    trial = _Trial(bundle, messages, models, spawn)
    try:
        return await trial.run()
    finally:
        await trial.close()


class _Trial:
    """One engine, one try. The supervisor judges the engine as it does in the service."""

    def __init__(
        self,
        bundle: FailureBundle,
        messages: Sequence[WorkMessage],
        models: Sequence[ServedModel],
        spawn: SpawnEngine,
    ) -> None:
        self._bundle = bundle
        self._messages = messages
        self._models = models
        self._memory: list[KvMemory] = []
        self._answers: dict[int, asyncio.Future[ToService]] = {}
        self._open = {message.request_id for message in messages}
        self._emitted_tokens = 0
        self._refused: list[str] = []
        self._over: asyncio.Future[EngineLoss | None] = asyncio.get_running_loop().create_future()
        self._next_id = len(messages) + 1
        weight_bytes = sum(model.description.weight_bytes for model in models)
        self._supervisor = EngineSupervisor(
            EngineLifecycle(
                load_deadline_s=LOAD_BASE_S + weight_bytes / SLOWEST_READ_BYTES_PER_S,
                step_deadline_s=bundle.step_deadline_s,
            ),
            load=self._load,
            on_message=self._on_message,
            on_up=self._on_up,
            on_down=self._end,
            on_failed=lambda reason: self._fail(EngineError(f"it cannot be tried here: {reason}")),
            spawn=spawn,
        )
        self._watch = asyncio.get_running_loop().create_task(self._supervisor.run())

    async def run(self) -> Attempt:
        loss = await self._over
        verdict: Verdict = "through"
        if loss is not None:
            verdict = "same" if same_way(self._bundle.loss, loss) else "other"
        return Attempt(
            verdict=verdict,
            loss=loss,
            emitted_tokens=self._emitted_tokens,
            refused=self._refused,
            last_lines=list(self._supervisor.last_lines) if loss is not None else [],
        )

    async def close(self) -> None:
        self._watch.cancel()
        await self._supervisor.stop()
        for memory in self._memory:
            memory.close()

    # --- what the supervisor tells ---

    async def _load(self, link: EngineLink) -> ModelsReady | LoadFailed:
        for model in self._models:
            failure = await self._load_one(link, model)
            if failure:
                self._fail(EngineError(f"{model.facts.model} cannot be loaded: {failure}"))
                return LoadFailed(failure, permanent=True)
        return ModelsReady()

    async def _load_one(self, link: EngineLink, model: ServedModel) -> str:
        description, facts = model.description, model.facts
        memory: KvMemory | None = None
        if description.decoder is not None:
            # One more than are served, as in the service, so that everything lies where it lay.
            layout = KvLayout.of(description.decoder, slots=model.slots + 1, max_len=facts.context_tokens)
            memory = KvMemory(description.name, layout)
            self._memory.append(memory)
        load = LoadModel(
            request_id=self._new_id(),
            model=description,
            threads=facts.threads,
            kv=memory.layout if memory is not None else None,
            max_batch=max(1, facts.max_batch),
            max_inter_token_ms=model.max_inter_token_ms,
            draft=model.draft,
        )
        answer = await self._ask(link, load, load.request_id, memory.fd if memory is not None else None)
        if not isinstance(answer, Loaded):
            return answer.message if isinstance(answer, Failed) else f"it was answered with {type(answer).__name__}"
        for adapter in model.adapters:
            message = LoadAdapter(
                request_id=self._new_id(),
                model=description.name,
                name=adapter.name,
                folder=adapter.folder,
                adapter_hash=adapter.adapter_hash,
            )
            answer = await self._ask(link, message, message.request_id)
            if isinstance(answer, Failed):
                self._refused.append(f"adapter {adapter.full_name}: {answer.message}")
        return ""

    async def _ask(
        self, link: EngineLink, message: LoadModel | LoadAdapter, request_id: int, fd: int | None = None
    ) -> ToService:
        answer: asyncio.Future[ToService] = asyncio.get_running_loop().create_future()
        self._answers[request_id] = answer
        link.send(message, fd)
        return await answer

    def _on_up(self, link: EngineLink) -> None:
        for message in self._messages:
            link.send(message)
        if not self._open:
            self._end(None)

    def _on_message(self, message: ToService) -> None:
        request_id = getattr(message, "request_id", None)
        if request_id is None or isinstance(message, PrefillProgress):
            return
        answer = self._answers.pop(request_id, None)
        if answer is not None and not answer.done():
            answer.set_result(message)
            return
        if isinstance(message, Tokens):
            self._emitted_tokens += len(message.ids)
            return
        if isinstance(message, Failed):
            self._refused.append(f"request {request_id}: {message.message}")
        elif isinstance(message, Finished) and message.reason == "error":
            self._refused.append(f"request {request_id} ended with an error")
        self._open.discard(request_id)
        if not self._open:
            self._end(None)

    def _end(self, loss: EngineLoss | None) -> None:
        if not self._over.done():
            self._over.set_result(loss)

    def _fail(self, error: MagnitudeError) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id


# --- requests that are made up ---


def _made_up(request: FailedRequest, model: ServedModel) -> WorkMessage | None:
    shape = request.shape
    # The same each time: a try that ends in another way than the one before says something about the engine.
    chance = random.Random(f"{shape.request_id} {shape.ids_hash}")  # noqa: S311 - no secret
    decoder = model.description.decoder
    known = range(min(MADE_UP_IDS.start, decoder.vocab_size - 1), decoder.vocab_size) if decoder else MADE_UP_IDS

    def ids(count: int) -> list[int]:
        return chance.choices(known, k=count)

    makers: dict[str, Callable[[], WorkMessage]] = {
        "Generate": lambda: _generation(shape, ids),
        "Embed": lambda: Embed(request_id=0, model=shape.model, inputs=[ids(count) for count in shape.input_tokens]),
        "EmbedAndRank": lambda: EmbedAndRank(
            request_id=0,
            model=shape.model,
            query=ids(shape.input_tokens[0]),
            documents=[ids(count) for count in shape.input_tokens[1:]],
            top_k=shape.top_k,
        ),
        "InferTensors": lambda: InferTensors(
            request_id=0,
            model=shape.model,
            inputs=[
                Tensor(
                    name=tensor.name,
                    dtype=tensor.dtype,
                    shape=tensor.shape,
                    data=bytes(math.prod(tensor.shape) * _item_bytes(tensor.dtype)),
                )
                for tensor in shape.tensors
            ],
        ),
    }
    make = makers.get(shape.message)
    return make() if make is not None else None


def _generation(shape: RequestShape, ids: Callable[[int], list[int]]) -> Generate:
    """Without stop tokens: it must come as far as the one that was, whatever it says."""
    return Generate(
        request_id=0,
        model=shape.model,
        slot=0,
        prompt=ids(shape.prompt_tokens),
        max_new_tokens=max(1, shape.max_new_tokens),
        sampler=shape.sampler or SamplerSettings(),
        logprobs=shape.logprobs,
        prefill_chunk=shape.prefill_chunk or 128,
        adapter=shape.adapter,
        max_draft=shape.max_draft,
        overflow=shape.overflow,
    )


def _item_bytes(dtype: str) -> int:
    import numpy as np

    return np.dtype(dtype).itemsize
