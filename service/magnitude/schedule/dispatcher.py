"""The dispatcher: the one place where admission's decisions become messages to the engine.

It implements `schedule.inference.Inference`. It lives on the service's event loop; nothing in it blocks.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from magnitude.config.kv import KvSettings
from magnitude.config.schedule import ScheduleSettings
from magnitude.engine.client import EngineLink
from magnitude.engine.protocol import (
    CancelRequest,
    Failed,
    Finished,
    Message,
    PrefillProgress,
    Tensor,
    TensorInfo,
    ToService,
)
from magnitude.errors import (
    DeadlineExceeded,
    EngineError,
    EngineGone,
    EngineNotReady,
    MagnitudeError,
    ModelError,
    Overloaded,
    RequestError,
)
from magnitude.feedback.records import Feedback, TaskRecord
from magnitude.models.description import ModelDescription
from magnitude.schedule.admission import Admission
from magnitude.schedule.conversations import Conversations
from magnitude.schedule.events import (
    Dropped,
    Effect,
    Ended,
    EngineDown,
    EngineUp,
    Event,
    Expire,
    Interrupt,
    Lost,
    Pause,
    Paused,
    PlacesChanged,
    Reject,
    Reserve,
    Start,
    Submit,
    Tick,
    Withdraw,
)
from magnitude.schedule.figures import ModelFigures, ScheduleFigures
from magnitude.schedule.inference import (
    Deadline,
    GenerationTask,
    KeptConversation,
    Priority,
    RankedResult,
    Reservation,
    ServiceHealth,
    ServiceState,
    VectorsResult,
)
from magnitude.schedule.open_generation import OpenGeneration
from magnitude.schedule.open_tasks import OpenRun, OpenTask
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.report import EngineView, health_of, state_of
from magnitude.schedule.runs import Runs
from magnitude.schedule.served_models import ServedModels
from magnitude.schedule.slot_files import SlotFiles
from magnitude.schedule.slot_terms import Placement

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
        schedule: ScheduleSettings | None = None,
        kv: KvSettings | None = None,
        files: SlotFiles | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        schedule = schedule or ScheduleSettings()
        self.models_served = ServedModels(plans, aliases=aliases, engine=engine, clock=clock)
        self.conversations = Conversations(
            self.models_served.by_name,
            settings=kv or KvSettings(),
            files=files,
            changed=self._places_changed,
            clock=clock,
        )
        self._runs = Runs(
            self.models_served,
            submit=self._submit,
            close=self._closed,
            withdraw=self._withdraw,
            next_id=self.next_id,
            busy=self._generates,
            settings=schedule,
            max_queue=max_queue,
            clock=clock,
        )
        self._admission = Admission(
            max_queue=max_queue, places=self, aging_s=schedule.aging_s, utilisation=schedule.utilisation
        )
        self._feedback = feedback
        self._engine = engine
        self._clock = clock
        self._started_s = clock()
        self._open: dict[int, OpenTask] = {}
        self._ids = itertools.count(1)
        self._link: EngineLink | None = None
        self._down_reason = "it is not running"
        self._preemptions: Counter[str] = Counter()
        self._restoring: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    # --- what the supervisor tells ---

    def next_id(self) -> int:
        return next(self._ids)

    def engine_up(self, link: EngineLink) -> None:
        self._link = link
        served = self.models_served.by_name.items()
        self._refuse_open()
        self._decide(EngineUp({name: plan.compute_slots for name, plan in served if plan.kv and not plan.failure}))

    def engine_down(self, reason: str) -> None:
        """The engine is gone: what ran fails with `reason`, what waits goes on waiting for the next engine."""
        self._link = None
        self._down_reason = reason
        self._decide(EngineDown())
        if self._engine.lifecycle.struggling:
            self._refuse_open()

    def refuse_all(self, error: MagnitudeError) -> None:
        """No engine will come: fail what waits and everything that comes after."""
        self.models_served.refusal = error
        self._refuse_open()

    async def close(self) -> None:
        """Keep what can be kept and give all KV memory back, once the engine is gone."""
        await self._runs.gate.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._restoring:
            await asyncio.wait(self._restoring)
        await self.conversations.close()

    def on_message(self, message: ToService) -> None:
        request_id = getattr(message, "request_id", None)
        task = self._open.get(request_id) if request_id is not None else None
        if task is None:
            return
        if isinstance(message, Failed):
            task.fail(error_from(message))
            self._ended(task)
        elif task.receive(message):
            self._ended(task, message if isinstance(message, Finished) else None)
        elif isinstance(message, PrefillProgress):
            plan = self.models_served.by_name[task.model]
            self.conversations.progressed(plan, task.request_id, message.done_tokens)

    # --- Inference ---

    def models(self) -> Sequence[ModelDescription]:
        return self.models_served.descriptions()

    def model(self, name: str) -> ModelDescription:
        return self.models_served.described(name)

    def plan(self, name: str) -> ModelPlan:
        return self.models_served.plan(name)

    def plans(self) -> Sequence[ModelPlan]:
        return self.models_served.all()

    def context_length(self, name: str) -> int:
        plan = self.plan(name)
        if plan.description.encoder is not None:
            return plan.description.encoder.max_tokens
        return plan.strategy.context_length

    def signature(self, name: str) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
        plan = self.plan(name)
        refusal = self.models_served.refusal_of(plan)
        if refusal is not None:
            raise refusal
        if plan.signature is None:
            raise EngineNotReady(f"{plan.description.name} is not loaded yet", hint="Ask again in a moment")
        return plan.signature

    async def generate(self, task: GenerationTask) -> OpenGeneration:
        plan = self.models_served.usable(task.model, ("decoder",), "generate text")
        adapter = self.models_served.resolve(task.model)[1]
        task = msgspec.structs.replace(task, model=plan.description.name, adapter=adapter)
        known = self.conversations.known(plan, task)
        generation = OpenGeneration(
            self.next_id(),
            task,
            prefill_chunk=plan.strategy.prefill_chunk,
            max_draft=plan.strategy.max_draft,
            close=self._closed,
            withdraw=self._withdraw,
        )
        submit = Submit(
            generation.request_id,
            "generation",
            plan.description.name,
            client=task.client,
            priority=task.priority,
            deadline=task.deadline,
            task=task.task,
            conversation=task.conversation or known.conversation,
            continuing=bool(known.conversation),
            expect=task.expect,
            tokens=len(task.prompt) - known.tokens,
            max_new_tokens=task.max_new_tokens,
        )
        self._submit(generation, submit)
        return generation

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
        return await self._runs.embed(model, inputs, token_types, priority=priority, deadline=deadline, client=client)

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
        return await self._runs.embed_and_rank(
            model, query, documents, top_k, priority=priority, deadline=deadline, client=client
        )

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
        return await self._runs.infer(model, inputs, outputs, priority=priority, deadline=deadline, client=client)

    def reserve(
        self, client: str, model: str, requests: int, hold_s: float, *, priority: Priority = "normal"
    ) -> Reservation:
        plan = self.models_served.usable(model, ("decoder",), "generate text")
        name = plan.description.name
        self._decide(Reserve(client, requests, hold_s, model=name, priority=priority))
        held = self._admission.hold(client, name, self._clock())
        return Reservation(client=client, model=name, granted=held.requests, until_s=held.until_s, reason=held.reason)

    def release(self, client: str, model: str) -> int:
        name = self.plan(model).description.name
        held = self._admission.hold(client, name, self._clock()).requests
        self._decide(Reserve(client, 0, 0.0, model=name))
        return held

    def kept(self, client: str | None) -> list[KeptConversation]:
        return self.conversations.kept(client)

    async def forget(self, client: str | None, model: str | None = None) -> int:
        return await self.conversations.forget(client, model)

    def health(self) -> ServiceHealth:
        return health_of(
            self.plans(),
            self._engine,
            waiting=self.waiting,
            running=self.running,
            uptime_s=self._clock() - self._started_s,
        )

    def state(self) -> ServiceState:
        return state_of(self.plans(), self._engine, self.health(), self._feedback, self.figures())

    def figures(self) -> ScheduleFigures:
        models: dict[str, ModelFigures] = {}
        runs_running = runs_waiting = 0
        for pool in self._admission.figures(self._clock()):
            plan = self.models_served.by_name.get(pool.name)
            if plan is None or plan.table is None:
                runs_running += pool.running
                runs_waiting += sum(pool.waiting.values())
                continue
            models[pool.name] = ModelFigures(
                kv=plan.table.figures(),
                capacity=pool.capacity,
                segments=pool.segments,
                running=pool.running,
                waiting=pool.waiting,
                paused=pool.paused,
                reserved=sum(held.requests for held in pool.reservations),
                preemptions=self._preemptions[pool.name],
                saved_bytes=self.conversations.saved_bytes(pool.name),
            )
        return ScheduleFigures(models=models, runs_running=runs_running, runs_waiting=runs_waiting)

    # --- figures for metrics ---

    @property
    def waiting(self) -> int:
        return self._admission.waiting

    @property
    def running(self) -> int:
        return self._admission.running

    def kv_resident_bytes(self) -> int:
        return sum(plan.kv.resident_bytes() for plan in self.plans() if plan.kv)

    # --- Places, for admission ---

    def place(self, request_id: int, now_s: float) -> Placement | None:
        task = self._open[request_id]
        assert isinstance(task, OpenGeneration), "only generations have slots"
        if task.placement is None:
            plan = self.models_served.by_name[task.model]
            task.placement = self.conversations.place(plan, request_id, task.task)
        return task.placement

    # --- inside ---

    def _generates(self) -> bool:
        return any(isinstance(task, OpenGeneration) and task.has_started for task in self._open.values())

    def _places_changed(self) -> None:
        self._decide(PlacesChanged())

    def _refuse_open(self) -> None:
        """Fail every open request whose model cannot serve."""
        for task in list(self._open.values()):
            refusal = self.models_served.refusal_of(self.models_served.by_name[task.model])
            if refusal is not None:
                task.fail(refusal)
                task.withdraw()

    def _submit(self, task: OpenTask, submit: Submit) -> None:
        self._open[task.request_id] = task
        refused = self._decide(submit, newcomer=task.request_id)
        if refused is not None:
            raise refused

    def _withdraw(self, request_id: int) -> None:
        self._decide(Withdraw(request_id))

    def _closed(self, task: OpenTask, record: TaskRecord) -> None:
        self._feedback.record(record)

    def _ended(self, task: OpenTask, end: Finished | None = None) -> None:
        """The engine is done with the task, for good or until it goes on."""
        if not isinstance(task, OpenGeneration):
            del self._open[task.request_id]
            self._decide(Ended(task.request_id, failed=task.failed))
            return
        if task.pausing and end is not None and end.reason == "cancelled":
            task.pausing = False
            self._decide(Paused(task.request_id))
            return
        if end is not None:
            task.finish(end.reason)
        self._give_back(task)
        computed_tokens = max(0, len(task.task.prompt) - task.spent.cached_tokens)
        self.conversations.prefilled(self.models_served.by_name[task.model], computed_tokens, task.spent.prefill_s)
        self._decide(
            Ended(
                task.request_id,
                prefill_tokens=computed_tokens,
                prefill_s=task.spent.prefill_s,
                new_tokens=len(task.emitted),
                decode_s=task.spent.decode_s,
                failed=task.failed,
            )
        )

    def _give_back(self, task: OpenTask) -> None:
        """The task is over: its slot, when it has one, belongs to nobody from now on."""
        del self._open[task.request_id]
        if isinstance(task, OpenGeneration) and task.placement is not None:
            if task.restoring:
                return  # its slot is being written; whoever does that gives it back
            plan = self.models_served.by_name[task.model]
            ids = [] if task.spent.slid_tokens else [*task.task.prompt, *task.emitted]
            self.conversations.finished(plan, task.request_id, task.placement.slot, task.task, ids)

    # --- effects ---

    def _decide(self, event: Event, *, newcomer: int | None = None) -> MagnitudeError | None:
        """Let admission decide and carry it out. Returns why the `newcomer` was rejected, if it was."""
        refused: MagnitudeError | None = None
        for effect in self._admission.apply(event, self._clock()):
            error = self._carry_out(effect)
            if isinstance(effect, Reject) and effect.request_id == newcomer:
                refused = error
        self._wake_again()
        return refused

    def _wake_again(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = self._clock()
        wake_s = self._admission.next_wake_s(now_s)
        if wake_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, wake_s - now_s), self._decide, Tick())

    def _carry_out(self, effect: Effect) -> MagnitudeError | None:
        task = self._open.get(effect.request_id)
        if task is None:
            return None  # it ended by an effect before this one
        match effect:
            case Start():
                self._start(task, effect)
            case Interrupt(request_id):
                self._send(CancelRequest(target=request_id))
            case Pause(request_id):
                if isinstance(task, OpenGeneration):
                    task.pausing = True
                    self._preemptions[task.model] += 1
                    self._send(CancelRequest(target=request_id))
            case Reject():
                return self._reject(task, effect)
            case Dropped():
                if isinstance(task, OpenGeneration):
                    task.finish("cancelled")
                self._give_back(task)
            case Lost():
                task.fail(
                    EngineGone(
                        f"the engine was lost while it held this request: {self._down_reason}",
                        hint="It is started again by itself; send the request again",
                    )
                )
                self._give_back(task)
            case Expire():
                self._expire(task, effect)
        return None

    def _start(self, task: OpenTask, start: Start) -> None:
        task.started(start.waited_s)
        if isinstance(task, OpenRun):
            self._send_first(task, task.message)
            return
        assert isinstance(task, OpenGeneration)
        if start.max_new_tokens is not None:
            task.limit(start.max_new_tokens)
        assert task.placement is not None, "admission starts what was placed"
        if task.placement.saved is not None and not start.resumed:
            restoring = asyncio.get_running_loop().create_task(self._restore_and_send(task))
            self._restoring.add(restoring)
            restoring.add_done_callback(self._restoring.discard)
        else:
            self._send_first(task, task.message(resumed=start.resumed))

    async def _restore_and_send(self, task: OpenGeneration) -> None:
        plan = self.models_served.by_name[task.model]
        assert task.placement is not None
        task.restoring = True
        restored = await self.conversations.restore(plan, task.placement)
        task.restoring = False
        if self._open.get(task.request_id) is not task:  # it was lost with its engine in the meantime
            self.conversations.finished(plan, task.request_id, task.placement.slot, task.task, task.task.prompt)
            return
        # What was asked of the engine in the meantime it could not do: it has never heard of this request.
        if task.due:
            task.finish("length", cut="deadline")
        if task.over:
            self._ended(task)
        elif task.pausing:
            task.pausing = False
            self._decide(Paused(task.request_id))
        else:
            self._send_first(task, task.message(resumed=False, reuse=restored))

    def _send_first(self, task: OpenTask, message: Message) -> None:
        try:
            self._send(message)
        except Exception as error:
            # What cannot be put into a frame never reaches the engine: its place must come free here.
            if not isinstance(error, MagnitudeError):
                log.exception("a request could not be sent to the engine")
                error = EngineError(f"the request could not be sent to the engine: {type(error).__name__}")
            task.fail(error)
            self._ended(task)

    def _reject(self, task: OpenTask, effect: Reject) -> MagnitudeError:
        error = Overloaded(
            f"the queue is full: {effect.waiting} requests are waiting",
            retry_after_s=effect.retry_after_s,
            position=effect.position,
            hint="Ask again later, or raise server.max_queue",
        )
        task.fail(error)
        self._give_back(task)
        return error

    def _expire(self, task: OpenTask, effect: Expire) -> None:
        if effect.hard:
            if isinstance(task, OpenGeneration):
                task.missed()
            else:
                task.fail(DeadlineExceeded("the deadline passed before there was a result", hint="Allow more time"))
        elif isinstance(task, OpenGeneration):
            if effect.running:
                task.end_soon()
                self._send(CancelRequest(target=task.request_id))
            else:
                task.finish("length", cut="deadline")
        if not effect.running:
            self._give_back(task)

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
