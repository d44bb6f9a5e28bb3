"""A stand-in for the models: answers from a script, with real token ids, and keeps account of its slots."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Sequence

import msgspec
from tiny_tokenizers import byte_level, word_piece

from magnitude.engine.protocol import Tensor, TensorInfo, TokenLogprob
from magnitude.errors import EngineNotReady, MagnitudeError, ModelNotFound
from magnitude.models.description import DecoderShape, EncoderShape, ModelDescription, SpecialTokens
from magnitude.schedule.figures import ScheduleFigures
from magnitude.schedule.inference import (
    Deadline,
    Emission,
    GenerationTask,
    KeptConversation,
    Priority,
    RankedResult,
    Recycled,
    Reservation,
    ServiceHealth,
    ServiceState,
    VariantState,
    VectorsResult,
)
from magnitude.text.catalogue import ModelText, TextCatalogue
from magnitude.text.template import ChatTemplate, TemplateSet
from magnitude.text.tokenizer import TextTokenizer

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DECODER = DecoderShape(layers=1, kv_heads=1, head_dim=8, vocab_size=512, hidden_size=8, context_length=256)
CHAT = ModelDescription(
    name="tiny-chat",
    kind="decoder",
    family="llama",
    folder="/models/tiny-chat",
    graph_file="model.onnx",
    model_hash="c",
    weight_bytes=1,
    special=SpecialTokens(eos=(2,), pad=0),
    decoder=DECODER,
    created_s=1_700_000_000,
)
EMBEDDER = ModelDescription(
    name="tiny-embed",
    kind="embedder",
    family="bert",
    folder="/models/tiny-embed",
    graph_file="model.onnx",
    model_hash="e",
    weight_bytes=1,
    encoder=EncoderShape(width=4, max_tokens=16),
)
RERANKER = ModelDescription(
    name="tiny-rerank",
    kind="reranker",
    family="bert",
    folder="/models/tiny-rerank",
    graph_file="model.onnx",
    model_hash="r",
    weight_bytes=1,
    encoder=EncoderShape(width=1, max_tokens=16, normalised=False),
)
ADDER = ModelDescription(
    name="adder",
    kind="tensors",
    family="",
    folder="/models/adder",
    graph_file="model.onnx",
    model_hash="t",
    weight_bytes=1,
)
SIGNATURE = (
    (TensorInfo(name="x", dtype="float32", shape=(-1, 2)), TensorInfo(name="flag", dtype="bool", shape=(1,))),
    (TensorInfo(name="y", dtype="float32", shape=(-1, 2)), TensorInfo(name="n", dtype="int64", shape=(1,))),
)


class FakeTexts(TextCatalogue):
    """Tiny tokenizers instead of model folders."""

    def __init__(self) -> None:
        super().__init__()
        encoder = ModelText(word_piece())
        self._texts = {
            CHAT.name: ModelText(byte_level(), TemplateSet({"default": ChatTemplate(CHATML, {})})),
            EMBEDDER.name: encoder,
            RERANKER.name: encoder,
        }

    def get(self, model: ModelDescription) -> ModelText:
        return self._texts[model.name]

    @property
    def chat(self) -> TextTokenizer:
        return self._texts[CHAT.name].tokenizer


class FakeInference:
    """Emits `answer` token by token, `token_s` apart, after `prefill_s`.

    `fail_at` raises `error` before that token. Counts what a slot would see: `opened`, `freed`, and what was emitted.
    """

    def __init__(self, texts: FakeTexts) -> None:
        self.texts = texts
        self.answer: str | list[int] = "hi"
        self.eos = True
        self.token_s = 0.0
        self.stalls: Callable[[GenerationTask], bool] = lambda task: False  # those never get a token
        self.prefill_s = 0.0
        self.fail_at: int | None = None
        self.error: MagnitudeError = EngineNotReady("The engine is starting", hint="Wait a moment.")
        self.refuse: MagnitudeError | None = None
        self.context = 256
        self.ready = True
        self.storage_off: list[str] = []
        self.embed_s = 0.0
        self.waited_s: float | None = 0.001
        self.room = 3  # requests that a reservation can get
        self.opened = 0
        self.freed = 0
        self.emitted = 0
        self.cancels: list[str] = []
        self.completed = 0
        self.tasks: list[GenerationTask] = []
        self.embedded: list[list[list[int]]] = []
        self.ranked: list[tuple[list[int], list[list[int]]]] = []
        self.variants: list[VariantState] = []  # of the chat model
        self.variant = ""  # that computes
        self.without: set[str] = set()  # models that are not served
        self.inferred: list[list[Tensor]] = []
        self.runs: list[tuple[Priority, Deadline | None, str]] = []
        self.schedule = ScheduleFigures()
        self.reserved_for: list[Priority] = []
        self.reservations: dict[tuple[str, str], Reservation] = {}
        self.last = Emission(
            queue_s=0.001,
            prefill_s=0.01,
            decode_s=0.02,
            cached_tokens=3,
            slot=2,
            batch=1.5,
            drafted_tokens=4,
            accepted_tokens=3,
        )
        self.conversations: list[KeptConversation] = []
        self.recycled: list[str] = []
        self.down = False

    @property
    def open(self) -> int:
        return self.opened - self.freed

    def models(self) -> Sequence[ModelDescription]:
        return [model for model in (CHAT, EMBEDDER, RERANKER, ADDER) if model.name not in self.without]

    def model(self, name: str) -> ModelDescription:
        if name in ("", "default"):
            return CHAT
        for model in self.models():
            if model.name == name:
                return model
        raise ModelNotFound(f"There is no model {name!r}", hint="See /v1/models.", param="model")

    def variant_states(self, name: str) -> Sequence[VariantState]:
        return self.variants if name == CHAT.name else []

    def context_length(self, name: str) -> int:
        return self.context

    def signature(self, name: str) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
        return SIGNATURE

    async def generate(self, task: GenerationTask) -> FakeGeneration:
        if self.refuse is not None:
            raise self.refuse
        self.tasks.append(task)
        ids = self.answer if isinstance(self.answer, list) else self._ids(self.answer)
        self.opened += 1
        return FakeGeneration(self, task, ids)

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
        if self.refuse is not None:
            raise self.refuse
        await asyncio.sleep(self.embed_s)
        self.embedded.append(inputs)
        self.runs.append((priority, deadline, client))
        width = 1 if model == RERANKER.name else 4
        rows = [struct.pack(f"<{width}f", *([float(len(ids))] * width)) for ids in inputs]
        return VectorsResult(width=width, rows=rows, queue_s=0.001, run_s=0.002, batch=2.0, variant=self.variant)

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
        """A document counts by the share of its words that are in the query."""
        if self.refuse is not None:
            raise self.refuse
        await asyncio.sleep(self.embed_s)
        self.ranked.append((query, documents))
        self.runs.append((priority, deadline, client))
        scores = [len(set(ids) & set(query)) / len(ids) for ids in documents]
        order = sorted(range(len(scores)), key=lambda n: (-scores[n], n))[:top_k]
        return RankedResult(indices=order, scores=[scores[n] for n in order], queue_s=0.001, run_s=0.003)

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
        if self.refuse is not None:
            raise self.refuse
        self.inferred.append(inputs)
        self.runs.append((priority, deadline, client))
        x = next(t for t in inputs if t.name == "x")
        values = struct.unpack(f"<{len(x.data) // 4}f", x.data)
        doubled = struct.pack(f"<{len(values)}f", *(2 * v for v in values))
        answer = [
            Tensor(name="y", dtype="float32", shape=x.shape, data=doubled),
            Tensor(name="n", dtype="int64", shape=(1,), data=struct.pack("<q", len(values))),
        ]
        return [t for t in answer if not outputs or t.name in outputs]

    def reserve(
        self, client: str, model: str, requests: int, hold_s: float, *, priority: Priority = "normal"
    ) -> Reservation:
        granted = min(requests, self.room)
        reason = "" if granted == requests else "there are 3 slots"
        kept = Reservation(client=client, model=model, granted=granted, until_s=100.0 + hold_s, reason=reason)
        self.reservations[client, model] = kept
        self.reserved_for.append(priority)
        return kept

    def release(self, client: str, model: str) -> int:
        kept = self.reservations.pop((client, model), None)
        return kept.granted if kept else 0

    def health(self) -> ServiceHealth:
        return ServiceHealth(
            live=True,
            ready=self.ready,
            reasons=[*([] if self.ready else ["tiny-chat is loading"]), *self.storage_off],
            engine_pid=1,
            engine_restarts=0,
            queue_depth=0,
            running=self.open,
            uptime_s=1.0,
            persistence="off" if self.storage_off else "on",
        )

    def state(self) -> ServiceState:
        return ServiceState(
            version="0",
            health=self.health(),
            engine_phase="serving",
            engine_steps=self.emitted,
            engine_rss_bytes=2,
            service_rss_bytes=1,
            models=[],
            figures={},
            schedule=self.schedule,
        )

    def kept(self, client: str | None) -> list[KeptConversation]:
        return [one for one in self.conversations if client in (None, one.owner)]

    async def forget(self, client: str | None, model: str | None = None) -> int:
        gone = [one for one in self.kept(client) if model in (None, one.model)]
        self.conversations = [one for one in self.conversations if one not in gone]
        return len(gone)

    async def recycle(self, reason: str) -> Recycled:
        if self.down:
            raise EngineNotReady("there is no engine to replace", hint="Ask again once it serves")
        self.recycled.append(reason)
        return Recycled(reason=reason, engine_pid=4, took_s=0.1, open_requests=1)

    def figures(self) -> ScheduleFigures:
        return self.schedule

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.texts.chat._tokenizer.encode(text, add_special_tokens=False).ids
        return [*ids, *CHAT.special.eos] if self.eos else ids


class FakeGeneration:
    def __init__(self, inference: FakeInference, task: GenerationTask, ids: list[int]) -> None:
        self._inference = inference
        self._task = task
        self._ids = ids
        self.variant = inference.variant
        self._at = 0
        self._cancelled = asyncio.Event()
        self._over = False

    @property
    def waited_s(self) -> float | None:
        return self._inference.waited_s

    async def next(self) -> Emission:
        if self._inference.stalls(self._task):
            await self._cancelled.wait()
        wait_s = self._inference.prefill_s if self._at == 0 else self._inference.token_s
        if wait_s and not self._cancelled.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._cancelled.wait(), wait_s)
        if self._inference.fail_at is not None and self._at >= self._inference.fail_at:
            self._free()
            raise self._inference.error
        if self._cancelled.is_set():
            return self._last("cancelled")
        if self._at >= self._task.max_new_tokens:
            return self._last("length")
        if self._at >= len(self._ids):
            return self._last("stop" if self._inference.eos else "length")
        token = self._ids[self._at]
        self._at += 1
        self._inference.emitted += 1
        logprobs = []
        if self._task.logprobs is not None:
            top = [(token, -0.5), (5, float("-inf"))][: self._task.logprobs]
            logprobs = [TokenLogprob(logprob=-0.5, top=top)]
        return Emission(ids=[token], logprobs=logprobs)

    def complete(self) -> None:
        self._inference.completed += 1
        self._cancelled.set()

    def cancel(self, why: str) -> None:
        if not self._over:
            self._inference.cancels.append(why)
        self._cancelled.set()
        self._free()

    def _last(self, reason: str) -> Emission:
        self._free()
        return msgspec.structs.replace(self._inference.last, reason=reason)

    def _free(self) -> None:
        if not self._over:
            self._over = True
            self._inference.freed += 1
