"""The dispatcher: the one place where admission's decisions become messages to the engine.

It implements `schedule.inference.Inference`. It lives on the service's event loop; nothing in it blocks.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from magnitude.engine.client import EngineLink
from magnitude.engine.protocol import (
    CancelRequest,
    Embed,
    Failed,
    InferTensors,
    Message,
    Tensor,
    TensorInfo,
    TensorsOut,
    ToService,
    Vectors,
)
from magnitude.errors import (
    EngineError,
    EngineGone,
    EngineNotReady,
    MagnitudeError,
    ModelError,
    ModelNotFound,
    Overloaded,
    RequestError,
)
from magnitude.feedback.records import Feedback, TaskRecord
from magnitude.models.description import Kind, ModelDescription
from magnitude.schedule.admission import (
    Admission,
    CleanSlot,
    Dropped,
    Effect,
    Ended,
    EngineDown,
    EngineUp,
    Interrupt,
    Lost,
    Reject,
    SlotCleaned,
    Start,
    Submit,
    Withdraw,
)
from magnitude.schedule.inference import GenerationTask, ServiceHealth, ServiceState, VectorsResult
from magnitude.schedule.open_tasks import OpenGeneration, OpenRun, OpenTask, unexpected
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.report import EngineView, health_of, state_of

log = logging.getLogger("magnitude.schedule")


class Dispatcher:
    """Requests in, results out, over one engine. `plans` is in order: the first decoder is the default."""

    def __init__(
        self,
        plans: Sequence[ModelPlan],
        *,
        aliases: Mapping[str, str],
        max_queue: int,
        feedback: Feedback,
        engine: EngineView,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plans = {plan.description.name: plan for plan in plans}
        self._aliases = dict(aliases)
        self._admission = Admission(max_queue=max_queue)
        self._feedback = feedback
        self._engine = engine
        self._clock = clock
        self._started_s = clock()
        self._open: dict[int, OpenTask] = {}
        self._ids = itertools.count(1)
        self._link: EngineLink | None = None
        self._down_reason = "it is not running"
        self._cleaning: set[asyncio.Task[None]] = set()
        # Set while the engine is down for good; requests are refused with it at once.
        self.refusal: MagnitudeError | None = None

    # --- what the supervisor tells ---

    def next_id(self) -> int:
        return next(self._ids)

    def engine_up(self, link: EngineLink) -> None:
        self._link = link
        slots = {name: plan.strategy.max_batch for name, plan in self._plans.items() if plan.kv and not plan.failure}
        self._refuse_open()
        self._apply(self._admission.apply(EngineUp(slots), self._clock()))

    def engine_down(self, reason: str) -> None:
        """The engine is gone: what ran fails with `reason`, what waits goes on waiting for the next engine."""
        self._link = None
        self._down_reason = reason
        self._apply(self._admission.apply(EngineDown(), self._clock()))
        if self._engine.lifecycle.struggling:
            self._refuse_open()

    def refuse_all(self, error: MagnitudeError) -> None:
        """No engine will come: fail what waits and everything that comes after."""
        self.refusal = error
        self._refuse_open()

    async def close(self) -> None:
        """Give all KV memory back, once the engine is gone."""
        if self._cleaning:
            await asyncio.wait(self._cleaning)
        for plan in self._plans.values():
            if plan.kv is not None:
                plan.kv.close()

    def on_message(self, message: ToService) -> None:
        request_id = getattr(message, "request_id", None)
        task = self._open.get(request_id) if request_id is not None else None
        if task is None:
            return
        if isinstance(message, Failed):
            task.fail(error_from(message))
            done = True
        else:
            done = task.receive(message)
        if done:
            self._ended(task)

    # --- Inference ---

    def models(self) -> Sequence[ModelDescription]:
        return [plan.description for plan in self._plans.values()]

    def model(self, name: str) -> ModelDescription:
        return self.plan(name).description

    def plan(self, name: str) -> ModelPlan:
        wanted = self._aliases.get(name, name)
        if wanted in {"", "default"}:
            wanted = next((n for n, plan in self._plans.items() if plan.description.kind == "decoder"), wanted)
        plan = self._plans.get(wanted)
        if plan is None:
            known = ", ".join(self._plans) or "none"
            raise ModelNotFound(
                f"the model {wanted!r} is not served here",
                param="model",
                hint=f"Served models: {known}. Others in the models folder are loaded through models.load",
            )
        return plan

    def context_length(self, name: str) -> int:
        plan = self.plan(name)
        if plan.description.encoder is not None:
            return plan.description.encoder.max_tokens
        return plan.strategy.context_length

    def signature(self, name: str) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
        plan = self.plan(name)
        self._check_usable(plan)
        if plan.signature is None:
            raise EngineNotReady(f"{plan.description.name} is not loaded yet", hint="Ask again in a moment")
        return plan.signature

    async def generate(self, task: GenerationTask) -> OpenGeneration:
        plan = self._usable(task.model, ("decoder",), "generate text")
        generation = OpenGeneration(
            self.next_id(),
            msgspec.structs.replace(task, model=plan.description.name),
            prefill_chunk=plan.strategy.prefill_chunk,
            close=self._closed,
            withdraw=self._withdraw,
        )
        self._submit(generation, "generation")
        return generation

    async def embed(
        self, model: str, inputs: list[list[int]], token_types: list[list[int]], *, request_key: str
    ) -> VectorsResult:
        plan = self._usable(model, ("embedder", "reranker"), "encode text")
        request_id = self.next_id()
        message = Embed(request_id=request_id, model=plan.description.name, inputs=inputs, token_types=token_types)
        run = self._run(request_id, plan, message, kind="embed", tokens=sum(map(len, inputs)))
        answer = await run.answer()
        if not isinstance(answer, Vectors):
            raise unexpected(answer)
        row_bytes = 4 * answer.width
        rows = [answer.data[start : start + row_bytes] for start in range(0, len(answer.data), row_bytes)]
        return VectorsResult(width=answer.width, rows=rows, queue_s=run.queue_s, run_s=answer.run_s)

    async def infer(self, model: str, inputs: list[Tensor], outputs: list[str], *, request_key: str) -> list[Tensor]:
        plan = self._usable(model, ("tensors", "embedder", "reranker"), "take plain tensors")
        request_id = self.next_id()
        message = InferTensors(request_id=request_id, model=plan.description.name, inputs=inputs, outputs=outputs)
        answer = await self._run(request_id, plan, message, kind="infer", tokens=0).answer()
        if not isinstance(answer, TensorsOut):
            raise unexpected(answer)
        return answer.outputs

    def health(self) -> ServiceHealth:
        return health_of(
            self.plans(),
            self._engine,
            waiting=self.waiting,
            running=self.running,
            uptime_s=self._clock() - self._started_s,
        )

    def state(self) -> ServiceState:
        return state_of(self.plans(), self._engine, self.health(), self._feedback)

    # --- figures for metrics ---

    @property
    def waiting(self) -> int:
        return self._admission.waiting

    @property
    def running(self) -> int:
        return self._admission.running

    def kv_resident_bytes(self) -> int:
        return sum(plan.kv.resident_bytes() for plan in self._plans.values() if plan.kv)

    def plans(self) -> Sequence[ModelPlan]:
        return list(self._plans.values())

    # --- inside ---

    def _usable(self, name: str, kinds: tuple[Kind, ...], purpose: str) -> ModelPlan:
        plan = self.plan(name)
        if plan.description.kind not in kinds:
            fitting = [p.description.name for p in self._plans.values() if p.description.kind in kinds]
            raise RequestError(
                f"{plan.description.name} is of kind {plan.description.kind} and cannot {purpose}",
                param="model",
                code="model_kind_mismatch",
                hint=f"Models that can: {', '.join(fitting) or 'none is loaded'}",
            )
        self._check_usable(plan)
        return plan

    def _check_usable(self, plan: ModelPlan) -> None:
        refusal = self._refusal_of(plan)
        if refusal is not None:
            raise refusal

    def _refuse_open(self) -> None:
        """Fail every open request whose model cannot serve."""
        for task in list(self._open.values()):
            refusal = self._refusal_of(self._plans[task.model])
            if refusal is not None:
                task.fail(refusal)
                task.withdraw()

    def _refusal_of(self, plan: ModelPlan) -> EngineNotReady | None:
        """Why the model cannot serve; a new error each time, since a raised one carries its traceback along."""
        if self.refusal is not None:
            return EngineNotReady(self.refusal.message, hint=self.refusal.hint)
        if plan.failure is not None:
            return EngineNotReady(
                f"{plan.description.name} could not be loaded: {plan.failure.message}", hint=plan.failure.hint
            )
        lifecycle = self._engine.lifecycle
        if lifecycle.struggling:
            return EngineNotReady(
                f"the engine does not stay up: {lifecycle.reason}",
                retry_after_s=max(1.0, lifecycle.next_check_s(self._clock())),
                hint="It is tried again by itself; see 'magnitude doctor' and the log for the cause",
            )
        return None

    def _run(self, request_id: int, plan: ModelPlan, message: Message, *, kind: str, tokens: int) -> OpenRun:
        run = OpenRun(
            request_id,
            plan.description.name,
            message,
            kind=kind,
            tokens=tokens,
            close=self._closed,
            withdraw=self._withdraw,
        )
        self._submit(run, "run")
        return run

    def _submit(self, task: OpenTask, lane: str) -> None:
        self._open[task.request_id] = task
        event = Submit(task.request_id, "generation" if lane == "generation" else "run", task.model)
        effects = self._admission.apply(event, self._clock())
        self._apply([effect for effect in effects if not isinstance(effect, Reject)])
        for effect in effects:
            if isinstance(effect, Reject):
                del self._open[task.request_id]
                error = Overloaded(
                    f"the queue is full: {effect.waiting} requests are waiting",
                    retry_after_s=self._expected_wait_s(task.model),
                    hint="Ask again later, or raise server.max_queue",
                )
                task.fail(error)
                raise error

    def _expected_wait_s(self, model: str) -> float:
        """How long one place in the queue takes to come free, from what tasks took lately; at least a second."""
        plan = self._plans[model]
        key = f"generate {model}" if plan.kv else f"embed {model}"
        figures = self._feedback.figures().get(key)
        if figures is None:
            return 1.0
        return max(1.0, figures.run_p50_s / max(1, plan.strategy.slots))

    def _withdraw(self, request_id: int) -> None:
        self._apply(self._admission.apply(Withdraw(request_id), self._clock()))

    def _closed(self, task: OpenTask, record: TaskRecord) -> None:
        self._feedback.record(record)

    def _ended(self, task: OpenTask) -> None:
        del self._open[task.request_id]
        self._apply(self._admission.apply(Ended(task.request_id), self._clock()))

    def _start(self, task: OpenTask, slot: int | None, waited_s: float) -> None:
        task.started(waited_s)
        try:
            self._send(task.message(slot))
        except Exception as error:
            # What cannot be put into a frame never reaches the engine: its place must come free here.
            if not isinstance(error, MagnitudeError):
                log.exception("a request could not be sent to the engine")
                error = EngineError(f"the request could not be sent to the engine: {type(error).__name__}")
            task.fail(error)
            self._ended(task)

    async def _clean(self, plan: ModelPlan, slot: int) -> None:
        """In a thread: giving 400 MB back takes 0.2 s, in which the loop would answer nobody."""
        assert plan.kv is not None, "only decoders have slots"
        try:
            await asyncio.to_thread(plan.kv.release_slot, slot)
        except OSError as error:
            log.warning(
                "memory of a KV slot could not be given back",
                extra={"fields": {"model": plan.description.name, "slot": slot, "reason": str(error)}},
            )
        self._apply(self._admission.apply(SlotCleaned(plan.description.name, slot), self._clock()))

    def _apply(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(request_id, slot, waited_s):
                    self._start(self._open[request_id], slot, waited_s)
                case Interrupt(request_id):
                    self._send(CancelRequest(target=request_id))
                case Dropped(request_id):
                    self._open.pop(request_id, None)
                case Lost(request_id):
                    task = self._open.pop(request_id)
                    task.fail(
                        EngineGone(
                            f"the engine was lost while it held this request: {self._down_reason}",
                            hint="It is started again by itself; send the request again",
                        )
                    )
                case CleanSlot(model, slot):
                    cleaning = asyncio.get_running_loop().create_task(self._clean(self._plans[model], slot))
                    self._cleaning.add(cleaning)
                    cleaning.add_done_callback(self._cleaning.discard)
                case Reject():
                    raise AssertionError("a rejection is the submitter's to handle")

    def _send(self, message: Message) -> None:
        if self._link is not None:
            self._link.send(message)


def error_from(message: Failed) -> MagnitudeError:
    """The error that the engine reported, as one of ours."""
    if message.request_fault:
        return RequestError(message.message, hint=message.hint, param=message.param, code=message.code)
    if message.permanent:
        return ModelError(message.message, hint=message.hint, param=message.param, code=message.code)
    return EngineError(message.message, hint=message.hint, param=message.param, code=message.code)
