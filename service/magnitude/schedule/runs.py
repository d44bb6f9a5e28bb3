"""Encoder and tensor runs: one message there, one answer back.

Embeddings and scores of many clients are computed together (`encode_gate.py`); everything else is a run of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from magnitude.config.schedule import ScheduleSettings
from magnitude.engine.message import Message
from magnitude.engine.protocol import Embed, EmbedAndRank, InferTensors, Ranked, Tensor, TensorsOut, Vectors
from magnitude.errors import DeadlineExceeded
from magnitude.models.description import ModelDescription
from magnitude.schedule.encode_batching import EncodeLimits
from magnitude.schedule.encode_gate import EncodeGate
from magnitude.schedule.events import Submit
from magnitude.schedule.inference import Deadline, Priority, RankedResult, VectorsResult
from magnitude.schedule.open_tasks import Close, OpenRun, OpenTask, unexpected
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.refusals import Refusals
from magnitude.schedule.served_models import ServedModels

T = TypeVar("T")


class Runs:
    """`route` names the variant that computes; `present` waits until a model is in memory; `submit` puts a task into
    the queue or raises; `close` and `withdraw` are the task's."""

    def __init__(
        self,
        models: ServedModels,
        *,
        route: Callable[[ModelPlan], ModelPlan],
        present: Callable[[str], Awaitable[None]],
        submit: Callable[[OpenTask, Submit], None],
        close: Close,
        withdraw: Callable[[int], None],
        next_id: Callable[[], int],
        busy: Callable[[], bool],
        refusals: Refusals,
        settings: ScheduleSettings,
        max_queue: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models = models
        self._route = route
        self._present = present
        self._submit = submit
        self._close = close
        self._withdraw = withdraw
        self._next_id = next_id
        self._clock = clock
        self._refusals = refusals
        self.gate = EncodeGate(
            self._encode,
            limits=_limits(settings, max_queue),
            next_id=next_id,
            busy=busy,
            clock=clock,
        )

    def tune(self, settings: ScheduleSettings, max_queue: int) -> None:
        """New settings, from the next batch on."""
        self.gate.tune(_limits(settings, max_queue))

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
        # Texts of several requests are one open task; what refuses one request alone is told here.
        with self._refusals.recorded("embed", model, sum(map(len, inputs)), task="embed", request=request_key):
            plan = self._models.usable(model, ("embedder", "reranker"), "encode text")
            model_used = self._route(plan).description
            return await self._within(deadline, self._gather(model_used, inputs, token_types, priority, client))

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
        with self._refusals.recorded(
            "embed", model, len(query) + sum(map(len, documents)), task="rank", request=request_key
        ):
            plan = self._models.usable(model, ("embedder",), "rank documents")
        message = EmbedAndRank(
            request_id=self._next_id(), model=plan.description.name, query=query, documents=documents, top_k=top_k
        )
        tokens = len(query) + sum(map(len, documents))
        submit = _submit(message, "rank", tokens=tokens, priority=priority, deadline=deadline, client=client)
        run = self._open(submit, message)
        answer = await run.answer()
        if not isinstance(answer, Ranked):
            raise unexpected(answer)
        return RankedResult(indices=answer.indices, scores=answer.scores, queue_s=run.queue_s, run_s=answer.run_s)

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
        with self._refusals.recorded("infer", model, 0, task="infer", request=request_key):
            plan = self._models.usable(model, ("tensors", "embedder", "reranker"), "take plain tensors")
        message = InferTensors(
            request_id=self._next_id(), model=plan.description.name, inputs=inputs, outputs=outputs
        )
        submit = _submit(message, "infer", tokens=0, priority=priority, deadline=deadline, client=client)
        answer = await self._open(submit, message).answer()
        if not isinstance(answer, TensorsOut):
            raise unexpected(answer)
        return answer.outputs

    async def _gather(
        self,
        model: ModelDescription,
        inputs: list[list[int]],
        token_types: list[list[int]],
        priority: Priority,
        client: str,
    ) -> VectorsResult:
        # Before the gate: few batches are under way at once, and one that waits for its model would hold up others.
        began_s = self._clock()
        await self._present(model.name)
        waited_s = self._clock() - began_s
        vectors = await self.gate.embed(model, inputs, token_types, priority=priority, client=client)
        variant = model.name if model.variant_of else ""
        return msgspec.structs.replace(vectors, queue_s=waited_s + vectors.queue_s, variant=variant)

    async def _encode(self, message: Embed, priority: Priority) -> Vectors:
        """One batch of the gate. Its members' deadlines are watched where they wait for it."""
        tokens = sum(map(len, message.inputs))
        submit = _submit(message, "embed", tokens=tokens, priority=priority, deadline=None, client="")
        answer = await self._open(submit, message).answer()
        if not isinstance(answer, Vectors):
            raise unexpected(answer)
        return answer

    def _open(self, submit: Submit, message: Message) -> OpenRun:
        run = OpenRun(
            submit.request_id,
            submit.model,
            message,
            kind="infer" if submit.task == "infer" else "embed",
            tokens=submit.tokens,
            close=self._close,
            withdraw=self._withdraw,
        )
        self._submit(run, submit)
        return run

    async def _within(self, deadline: Deadline | None, work: Awaitable[T]) -> T:
        if deadline is None or not deadline.hard:
            return await work
        try:
            async with asyncio.timeout(max(0.0, deadline.at_s - self._clock())):
                return await work
        except TimeoutError as error:
            raise DeadlineExceeded(
                "the deadline passed before there was a result", hint="Allow more time, or send fewer texts"
            ) from error


def _submit(
    message: Embed | EmbedAndRank | InferTensors,
    task: str,
    *,
    tokens: int,
    priority: Priority,
    deadline: Deadline | None,
    client: str,
) -> Submit:
    return Submit(
        message.request_id,
        "run",
        message.model,
        client=client,
        priority=priority,
        deadline=deadline,
        task=task,
        tokens=tokens,
    )


def _limits(settings: ScheduleSettings, max_queue: int) -> EncodeLimits:
    return EncodeLimits(
        max_batch=settings.encode_max_batch, wait_s=settings.encode_wait_ms / 1000, max_queue=max_queue
    )
