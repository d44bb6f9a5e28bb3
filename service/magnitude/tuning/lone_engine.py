"""An engine process of its own with one model in it, for work beside the service."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

from magnitude.engine.message import Message
from magnitude.engine.protocol import Failed, Loaded, PrefillProgress, Steps, ToService
from magnitude.errors import EngineError, MagnitudeError
from magnitude.schedule.engine_errors import error_from
from magnitude.schedule.loading import load_deadline_s, load_message
from magnitude.schedule.plan import ModelPlan
from magnitude.supervise.connected_engine import ConnectedEngine, SpawnEngine
from magnitude.supervise.engine_process import EngineProcess
from magnitude.supervise.loss import EngineLoss

# The longest answer besides the model itself is a session of a large one.
ANSWER_WITHIN_S = 600.0
# A process that was killed gives its memory back before it is gone: a second for a gigabyte on a small board.
ENDS_WITHIN_S = 10.0


class LoneEngine:
    """A context in which the engine runs. Raises `EngineError` when it is lost, `MagnitudeError` when it refuses."""

    def __init__(self, plan: ModelPlan, *, spawn: SpawnEngine | None = None) -> None:
        self.plan = plan
        self._spawn = spawn or EngineProcess.spawn
        self._engine: ConnectedEngine | None = None
        self._answers: dict[int, asyncio.Future[ToService]] = {}
        self._next_id = 0
        self._lost = ""
        self._ended = asyncio.Event()

    async def __aenter__(self) -> LoneEngine:
        try:
            self._engine = await ConnectedEngine.start(self._spawn, self)
        except OSError as error:
            raise EngineError(f"an engine cannot be started: {error.strerror or error}") from error
        plan = self.plan
        load = load_message(plan, plan.description, self.next_id())
        try:
            fd = plan.kv.fd if plan.kv is not None else None
            answer = await self.ask(load, load.request_id, fd=fd, within_s=load_deadline_s([plan]))
            if not isinstance(answer, Loaded):
                raise EngineError(f"{plan.description.name} was answered with {type(answer).__name__}")
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._engine is not None:
            if not self._engine.ended:
                self._engine.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), ENDS_WITHIN_S)
        if self.plan.kv is not None:
            self.plan.kv.close()

    def next_id(self) -> int:
        self._next_id += 1
        return self._next_id

    async def ask(
        self, message: Message, request_id: int, *, fd: int | None = None, within_s: float = ANSWER_WITHIN_S
    ) -> ToService:
        """The answer with that id. A refusal is raised."""
        if self._lost or self._engine is None:
            raise EngineError(f"the engine is lost: {self._lost}")
        answer: asyncio.Future[ToService] = asyncio.get_running_loop().create_future()
        self._answers[request_id] = answer
        try:
            self._engine.link.send(message, fd)
            found = await asyncio.wait_for(answer, within_s)
        except TimeoutError as error:
            raise EngineError(f"the engine did not answer within {within_s:.0f} s") from error
        finally:
            self._answers.pop(request_id, None)
        if isinstance(found, Failed):
            raise error_from(found)
        return found

    def send(self, message: Message) -> None:
        """What has no answer."""
        if self._engine is not None and not self._engine.ended:
            self._engine.send(message)

    # --- what the engine tells ---

    def engine_said(self, engine: ConnectedEngine, message: ToService) -> None:
        request_id = getattr(message, "request_id", None)
        if request_id is None or isinstance(message, (PrefillProgress, Steps)):
            return
        answer = self._answers.get(request_id)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def engine_ended(self, engine: ConnectedEngine, loss: EngineLoss) -> None:
        self._lost = loss.reason
        self._ended.set()
        error: MagnitudeError = EngineError(
            f"the engine was lost: {loss.reason}", hint="See its last lines above; free memory if it was killed"
        )
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
