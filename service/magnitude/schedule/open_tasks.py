"""Tasks under way: what the dispatcher holds for each, and how results reach the one who asked."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable

import msgspec

from magnitude.engine.message import Message
from magnitude.errors import EngineError, MagnitudeError
from magnitude.feedback.records import Outcome, TaskRecord

Close = Callable[["OpenTask", TaskRecord], None]


class OpenTask:
    """A task from its submission to its single end.

    `close` is called exactly once, with the record of what happened. `withdraw` asks the dispatcher to take the
    task out of the queue or to interrupt the engine.
    """

    def __init__(self, request_id: int, model: str, *, close: Close, withdraw: Callable[[int], None]) -> None:
        self.request_id = request_id
        self.model = model
        self.strategy_id = ""  # of the strategy that it is run by
        self.queue_s = 0.0
        self.has_started = False
        self.over = False
        self.failed = False  # it ended without an answer
        self.paused = False  # it has begun, and no engine holds it
        self.recoveries = 0  # engines that were lost while they held it
        self._close = close
        self._withdraw = withdraw

    def started(self, waited_s: float) -> None:
        self.queue_s = waited_s
        self.has_started = True

    @property
    def in_engine(self) -> bool:
        return self.has_started and not self.paused

    def lost(self) -> None:
        """The engine that held it is gone; it goes on with the next one."""
        self.paused = True
        self.recoveries += 1

    @property
    def progress(self) -> tuple[int, ...]:
        """How far it has come; compares as later or not."""
        return ()

    def first_message(self) -> Message:
        """What the engine is to be told, as it was at the beginning: a request is known by it."""
        raise NotImplementedError

    def receive(self, message: Message) -> bool:
        """Take a message from the engine. True: the engine is done with the task."""
        raise NotImplementedError

    def fail(self, error: MagnitudeError) -> None:
        """End the task with `error`, unless it is over already."""
        raise NotImplementedError

    def end(self, record: TaskRecord) -> None:
        if not self.over:
            self.over = True
            self.failed = record.outcome != "ok"
            self._close(self, record)

    def withdraw(self) -> None:
        self._withdraw(self.request_id)


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
        self.message = message
        self._is_embedding = kind == "embed"
        self._tokens = tokens
        self._answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def first_message(self) -> Message:
        return self.message

    async def answer(self) -> Message:
        """The engine's answer. When the waiting coroutine is cancelled, the run is withdrawn."""
        try:
            return await self._answer
        except asyncio.CancelledError:
            if not self.over:
                self.end(self._record("cancelled", code="client_gone"))
                self.withdraw()
            raise

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
            strategy=self.strategy_id,
        )


def fingerprint(message: Message) -> bytes:
    """What tells one request from another, whoever sends it and whenever."""
    if hasattr(message, "request_id"):
        message = msgspec.structs.replace(message, request_id=0)
    return hashlib.sha256(msgspec.msgpack.encode(message)).digest()


def unexpected(message: Message) -> EngineError:
    return EngineError(f"the engine answered with {type(message).__name__}, which does not fit the request")
