"""Carries out what `EncodeBatching` decides: gathers texts, sends batches, cuts the answers apart again.

It lives on the service's event loop and stands in front of whatever sends a message to the engine.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence

from magnitude.engine.encoder_buckets import check_embed
from magnitude.engine.protocol import Embed, Vectors
from magnitude.errors import EngineError, EngineNotReady, Overloaded
from magnitude.models.description import ModelDescription
from magnitude.schedule.encode_batching import (
    BatchDone,
    BatchFailed,
    CancelBatch,
    Complete,
    Effect,
    EncodeBatching,
    EncodeJob,
    EncodeLimits,
    EngineLoad,
    Event,
    Fail,
    Refuse,
    RunBatch,
    Tick,
    Withdraw,
)
from magnitude.schedule.inference import Priority, VectorsResult


class _Open:
    """A request under way: its texts, and the rows that have come so far."""

    __slots__ = ("answer", "inputs", "rows", "token_types", "width")

    def __init__(self, inputs: list[list[int]], token_types: list[list[int]]) -> None:
        self.inputs = inputs
        self.token_types = token_types
        self.rows: list[bytes] = [b""] * len(inputs)
        self.width = 0
        self.answer: asyncio.Future[Complete] = asyncio.get_running_loop().create_future()


class EncodeGate:
    """Embeddings and scores of many clients, computed together.

    `run` sends one message, with the highest priority of its requests, and gives its answer; when it is cancelled it
    withdraws the message. `next_id` gives
    the messages their numbers. `busy` says whether the engine has other work than this gate's.
    """

    def __init__(
        self,
        run: Callable[[Embed, Priority], Awaitable[Vectors]],
        *,
        limits: EncodeLimits,
        next_id: Callable[[], int],
        busy: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._next_id = next_id
        self._busy = busy
        self._clock = clock
        self._batching = EncodeBatching(limits)
        self._ids = itertools.count(1)
        self._open: dict[int, _Open] = {}
        self._batches: dict[int, asyncio.Future[Vectors]] = {}
        self._error: Exception = EngineError("no batch has failed")  # what the last batch failed with
        self._timer: asyncio.TimerHandle | None = None

    def tune(self, limits: EncodeLimits) -> None:
        """Limits that count from the next batch on."""
        self._batching.tune(limits)

    @property
    def waiting(self) -> int:
        """Requests of which some text is not with the engine yet."""
        return self._batching.waiting

    async def embed(
        self,
        model: ModelDescription,
        inputs: list[list[int]],
        token_types: list[list[int]],
        *,
        priority: Priority = "normal",
        client: str = "",
    ) -> VectorsResult:
        """One row a text, in the order asked, with the request's own times.

        Raises `RequestError` for texts that the encoder cannot take, `Overloaded` when the queue is full, and
        whatever `run` raised. When the caller is cancelled, the request leaves its batches.
        """
        if model.encoder is None:
            raise EngineError(f"model {model.name} is no encoder")
        max_tokens = model.encoder.max_tokens
        check_embed(Embed(request_id=0, model=model.name, inputs=inputs, token_types=token_types), max_tokens)
        request_id = next(self._ids)
        request = self._open[request_id] = _Open(inputs, token_types)
        try:
            lengths = tuple(map(len, inputs))
            self._apply(EncodeJob(request_id, model.name, lengths, max_tokens, priority, client))
            done = await request.answer
        finally:
            del self._open[request_id]
            if not request.answer.done() or request.answer.cancelled():
                self._apply(Withdraw(request_id))
        return VectorsResult(
            width=request.width or model.encoder.width,
            rows=request.rows,
            queue_s=done.queue_s,
            run_s=done.run_s,
            batch=done.rows,
        )

    def engine_load_changed(self) -> None:
        """Look at `busy` again: what waited for company need not wait for a busy engine any longer."""
        self._apply(Tick())

    async def close(self) -> None:
        """Stop waiting for batches and end them."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._batches.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # --- inside ---

    def _apply(self, event: Event) -> None:
        now_s = self._clock()
        effects = self._batching.apply(EngineLoad(self._busy()), now_s)
        effects += self._batching.apply(event, now_s)
        for effect in effects:
            self._carry_out(effect)
        self._wake_again(now_s)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case RunBatch():
                task = asyncio.ensure_future(self._run(self._message(effect), effect.priority))
                self._batches[effect.batch_id] = task
                task.add_done_callback(lambda done: self._ended(effect, done))
            case CancelBatch(batch_id):
                self._batches[batch_id].cancel()
            case Complete(request_id):
                self._answer(request_id, effect)
            case Fail(request_id):
                self._answer(request_id, self._error)
            case Refuse(request_id, waiting):
                error = Overloaded(
                    f"the queue is full: {waiting} requests are waiting",
                    hint="Ask again later, or raise server.max_queue",
                )
                self._answer(request_id, error)

    def _answer(self, request_id: int, outcome: Complete | Exception) -> None:
        request = self._open.get(request_id)
        if request is None or request.answer.done():
            return
        if isinstance(outcome, Complete):
            request.answer.set_result(outcome)
        else:
            request.answer.set_exception(outcome)

    def _ended(self, batch: RunBatch, task: asyncio.Future[Vectors]) -> None:
        del self._batches[batch.batch_id]
        event: Event
        try:
            answer = task.result()
            self._cut_apart(batch, answer)
            event = BatchDone(batch.batch_id, answer.run_s)
        except asyncio.CancelledError:
            self._error = EngineError("the batch was withdrawn", code="cancelled")
            event = BatchFailed(batch.batch_id, retry_alone=False)
        except Exception as error:
            self._error = error
            # An engine that does not come says nothing about the texts, and would not come once a request.
            lost = isinstance(error, EngineNotReady | Overloaded)
            event = BatchFailed(batch.batch_id, retry_alone=not lost)
        self._apply(event)

    def _message(self, batch: RunBatch) -> Embed:
        requests = [(self._open[part.request_id], part.indices) for part in batch.parts]
        types = [request.token_types[i] for request, indices in requests for i in indices if request.token_types]
        if types and len(types) < batch.rows:  # some requests left theirs out, which means zeros
            types = [
                request.token_types[i] if request.token_types else [0] * len(request.inputs[i])
                for request, indices in requests
                for i in indices
            ]
        return Embed(
            request_id=self._next_id(),
            model=batch.model,
            inputs=[request.inputs[i] for request, indices in requests for i in indices],
            token_types=types,
        )

    def _cut_apart(self, batch: RunBatch, answer: Vectors) -> None:
        row_bytes = 4 * answer.width
        if answer.count != batch.rows or len(answer.data) != batch.rows * row_bytes:
            raise EngineError(f"the engine gave {answer.count} rows for {batch.rows} texts")
        place = 0
        for part in batch.parts:
            request = self._open.get(part.request_id)
            if request is not None:
                request.width = answer.width
                _put_rows(request.rows, part.indices, answer.data, place, row_bytes)
            place += len(part.indices) * row_bytes

    def _wake_again(self, now_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_s = self._batching.next_wake_s()
        if wake_s is not None:
            delay_s = max(0.0, wake_s - now_s)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._apply, Tick())


def _put_rows(rows: list[bytes], indices: Sequence[int], data: bytes, start: int, row_bytes: int) -> None:
    for n, index in enumerate(indices):
        at = start + n * row_bytes
        rows[index] = data[at : at + row_bytes]
