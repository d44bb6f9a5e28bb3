"""Tasks under way: what the dispatcher holds for each, and how results reach the one who asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from magnitude.engine.protocol import Finished, Generate, Message, Tokens
from magnitude.errors import EngineError, MagnitudeError
from magnitude.feedback.records import Outcome, TaskRecord
from magnitude.schedule.inference import Emission, GenerationTask

Close = Callable[["OpenTask", TaskRecord], None]


class OpenTask:
    """A task from its submission to its single end.

    `close` is called exactly once, with the record of what happened. `withdraw` asks the dispatcher to take the
    task out of the queue or to interrupt the engine.
    """

    def __init__(self, request_id: int, model: str, *, close: Close, withdraw: Callable[[int], None]) -> None:
        self.request_id = request_id
        self.model = model
        self.queue_s = 0.0
        self.over = False
        self._close = close
        self._withdraw = withdraw

    def message(self, slot: int | None) -> Message:
        """What is sent to the engine when the task starts."""
        raise NotImplementedError

    def started(self, waited_s: float) -> None:
        self.queue_s = waited_s

    def receive(self, message: Message) -> bool:
        """Take a message from the engine. True: the engine is done with the task."""
        raise NotImplementedError

    def fail(self, error: MagnitudeError) -> None:
        """End the task with `error`, unless it is over already."""
        raise NotImplementedError

    def end(self, record: TaskRecord) -> None:
        if not self.over:
            self.over = True
            self._close(self, record)

    def withdraw(self) -> None:
        self._withdraw(self.request_id)


class OpenGeneration(OpenTask):
    """A generation under way; implements `schedule.inference.Generation`."""

    def __init__(
        self,
        request_id: int,
        task: GenerationTask,
        *,
        prefill_chunk: int,
        max_draft: int = 0,
        close: Close,
        withdraw: Callable[[int], None],
    ) -> None:
        super().__init__(request_id, task.model, close=close, withdraw=withdraw)
        self._task = task
        self._prefill_chunk = prefill_chunk
        self._max_draft = max_draft
        self._new_tokens = 0
        self._complete = False
        self._emissions: asyncio.Queue[Emission | MagnitudeError] = asyncio.Queue()
        self._last: Emission | MagnitudeError | None = None

    async def next(self) -> Emission:
        if self._last is None:
            item = await self._emissions.get()
            if isinstance(item, Emission) and item.reason is None:
                return item
            self._last = item
        if isinstance(self._last, MagnitudeError):
            raise self._last
        return self._last

    def complete(self) -> None:
        if not self.over and not self._complete:
            self._complete = True
            self.withdraw()

    def cancel(self, why: str) -> None:
        if self.over:
            return
        self.end(self._record("ok") if self._complete else self._record("cancelled", code=why))
        self._emissions.put_nowait(Emission(reason="cancelled", queue_s=self.queue_s))
        self.withdraw()

    def message(self, slot: int | None) -> Generate:
        assert slot is not None, "a generation starts in a slot"
        task = self._task
        return Generate(
            request_id=self.request_id,
            model=task.model,
            slot=slot,
            prompt=task.prompt,
            max_new_tokens=task.max_new_tokens,
            sampler=task.sampler,
            grammar=task.grammar,
            stop_ids=task.stop_ids,
            logprobs=task.logprobs,
            prefill_chunk=self._prefill_chunk,
            max_draft=self._max_draft,
        )

    def receive(self, message: Message) -> bool:
        match message:
            case Tokens(ids=ids, logprobs=logprobs):
                self._new_tokens += len(ids)
                if not self.over:
                    self._emissions.put_nowait(Emission(ids=ids, logprobs=logprobs))
                return False
            case Finished():
                if not self.over:
                    record = self._record(
                        "cancelled" if message.reason == "cancelled" and not self._complete else "ok",
                        prefill_s=message.prefill_s,
                        decode_s=message.decode_s,
                    )
                    self.end(record)
                    self._emissions.put_nowait(
                        Emission(
                            reason=message.reason,
                            queue_s=self.queue_s + message.wait_s,
                            prefill_s=message.prefill_s,
                            decode_s=message.decode_s,
                        )
                    )
                return True
            case _:
                return False

    def fail(self, error: MagnitudeError) -> None:
        if not self.over:
            self.end(self._record("failed", code=error.code))
            self._emissions.put_nowait(error)

    def _record(
        self, outcome: Outcome, *, code: str = "", prefill_s: float = 0.0, decode_s: float = 0.0
    ) -> TaskRecord:
        return TaskRecord(
            kind="generate",
            model=self.model,
            outcome=outcome,
            code=code,
            prompt_tokens=len(self._task.prompt),
            new_tokens=self._new_tokens,
            queue_s=self.queue_s,
            prefill_s=prefill_s,
            decode_s=decode_s,
        )


class OpenRun(OpenTask):
    """An encoder or tensor run under way: one message there, one answer back."""

    def __init__(
        self,
        request_id: int,
        model: str,
        message: Message,
        *,
        kind: str,
        tokens: int,
        close: Close,
        withdraw: Callable[[int], None],
    ) -> None:
        super().__init__(request_id, model, close=close, withdraw=withdraw)
        self._message = message
        self._is_embedding = kind == "embed"
        self._tokens = tokens
        self._answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    async def answer(self) -> Message:
        """The engine's answer. When the waiting coroutine is cancelled, the run is withdrawn."""
        try:
            return await self._answer
        except asyncio.CancelledError:
            if not self.over:
                self.end(self._record("cancelled", code="client_gone"))
                self.withdraw()
            raise

    def message(self, slot: int | None) -> Message:
        return self._message

    def receive(self, message: Message) -> bool:
        if not self.over:
            run_s = getattr(message, "run_s", 0.0)
            self.end(self._record("ok", run_s=run_s))
            if not self._answer.done():
                self._answer.set_result(message)
        return True

    def fail(self, error: MagnitudeError) -> None:
        if not self.over:
            self.end(self._record("failed", code=error.code))
            if not self._answer.done():
                self._answer.set_exception(error)
                # A request that is refused at once is told by raising; nobody will read the future as well.
                self._answer.exception()

    def _record(self, outcome: Outcome, *, code: str = "", run_s: float = 0.0) -> TaskRecord:
        return TaskRecord(
            kind="embed" if self._is_embedding else "infer",
            model=self.model,
            outcome=outcome,
            code=code,
            prompt_tokens=self._tokens,
            queue_s=self.queue_s,
            prefill_s=run_s,
        )


def unexpected(message: Message) -> EngineError:
    return EngineError(f"the engine answered with {type(message).__name__}, which does not fit the request")
