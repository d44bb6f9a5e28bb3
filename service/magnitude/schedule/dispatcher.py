"""The dispatcher: the one place where admission's decisions become messages to the engine.

It implements `schedule.inference.Inference`. It lives on the service's event loop; nothing in it blocks.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from magnitude.config.kv import KvSettings
from magnitude.config.schedule import ScheduleSettings
from magnitude.engine.client import EngineLink
from magnitude.engine.protocol import Failed, Finished, PrefillProgress, TensorInfo, Tokens, ToService
from magnitude.errors import EngineNotReady, MagnitudeError
from magnitude.feedback.records import Feedback, TaskRecord
from magnitude.models.description import ModelDescription
from magnitude.policy.strategy import Strategy
from magnitude.schedule.admission import Admission
from magnitude.schedule.conversations import Conversations
from magnitude.schedule.engine_errors import error_from
from magnitude.schedule.events import (
    Ended,
    EngineDown,
    EngineUp,
    Event,
    LimitChanged,
    Paused,
    PlacesChanged,
    Proved,
    Reject,
    Reserve,
    SetComputeSlots,
    Submit,
    Tick,
    Withdraw,
)
from magnitude.schedule.execution import Execution
from magnitude.schedule.figures import ScheduleFigures
from magnitude.schedule.inference import (
    GenerationTask,
    KeptConversation,
    Priority,
    Recycled,
    Reservation,
    ServiceHealth,
    ServiceState,
    VariantState,
)
from magnitude.schedule.kept_memory import KeptMemory
from magnitude.schedule.long_prompts import LongPrompts
from magnitude.schedule.open_generation import OpenGeneration
from magnitude.schedule.open_tasks import OpenTask
from magnitude.schedule.phase_meter import WorkMeter
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.planned_strategy import planned_strategy
from magnitude.schedule.presence import Presence
from magnitude.schedule.refusals import Refusals
from magnitude.schedule.replacement import replace_engine
from magnitude.schedule.report import EngineView, Watched, figures_of, health_of, state_of, variant_states_of
from magnitude.schedule.runs import Runs
from magnitude.schedule.served_models import ServedModels
from magnitude.schedule.slot_files import SlotFiles
from magnitude.schedule.slot_terms import Placement
from magnitude.schedule.suspicion import Suspicion
from magnitude.schedule.turning_away import TurningAway
from magnitude.schedule.variant_routing import VariantRouting
from magnitude.supervise.lifecycle import Phase
from magnitude.supervise.loss import EngineLoss

if TYPE_CHECKING:
    from magnitude.schedule.model_switch import ModelSwitch


class Dispatcher:
    """Requests in, results out, over one engine. `plans` is in order: the first decoder is the default. `left_out`
    says by name why a model has no plan, `storage_off` why something is not kept. `on_loss` is told of each engine
    that was lost, the tasks that it held, and which of them is refused for it.

    Until `use` names a switch, all models are taken for loaded while the engine is up.
    """

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
        kept: KeptMemory | None = None,
        left_out: Mapping[str, MagnitudeError] | None = None,
        storage_off: Callable[[], Sequence[str]] = list,
        on_loss: Callable[[EngineLoss, list[OpenTask], int | None], None] = lambda loss, tasks, refused: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        schedule = schedule or ScheduleSettings()
        self.models_served = ServedModels(plans, aliases=aliases, engine=engine, left_out=left_out, clock=clock)
        self.conversations = Conversations(
            self.models_served.by_name,
            settings=kv or KvSettings(),
            files=files,
            changed=self._places_changed,
            kept=kept,
            clock=clock,
        )
        self._execution = Execution(self.models_served, self.conversations, ended=self._ended, paused=self._paused)
        self._open = self._execution.open
        self.work = WorkMeter(self._open.values, clock)
        self._presence = Presence(
            self.models_served.by_name,
            max_queue=max_queue,
            open_tasks=self._open.values,
            engine_up=lambda: engine.lifecycle.phase is Phase.UP,
        )
        self.variants = VariantRouting(
            self.models_served,
            ready=lambda name: self.ready(name, begun=False),
            wanted=self._want_variant,
            known=self.conversations.known,
            reserved=lambda client, name: self._admission.hold(client, name, clock()).requests > 0,
            clock=clock,
        )
        self._refusals = Refusals(feedback)
        self._runs = Runs(
            self.models_served,
            route=self.variants.for_texts,
            present=self._presence.present,
            submit=self._submit,
            close=self._closed,
            withdraw=self._withdraw,
            next_id=self.next_id,
            busy=self._generates,
            refusals=self._refusals,
            settings=schedule,
            max_queue=max_queue,
            clock=clock,
        )
        self._admission = Admission(
            max_queue=max_queue, places=self, aging_s=schedule.aging_s, utilisation=schedule.utilisation
        )
        self._feedback = feedback
        self._storage_off = storage_off
        self._engine = engine
        self._clock = clock
        self._started_s = clock()
        self._ids = itertools.count(1)
        # Runs are answered as they are; see `Inference`.
        self.embed, self.embed_and_rank, self.infer = self._runs.embed, self._runs.embed_and_rank, self._runs.infer
        self.watched = Watched()
        self._compute_slots: dict[str, int] = {}
        self.long_prompts = LongPrompts()
        # Who says how a request is to run: of the model, with so many tokens to compute and found; None: as planned.
        self.strategy_for: Callable[[ModelPlan, int, int], Strategy | None] = lambda plan, tokens, cached: None
        self.on_task: Callable[[TaskRecord], None] = lambda record: None
        self._suspicion = Suspicion(clock)
        self._turning_away = TurningAway(
            self.models_served,
            self.conversations,
            self._execution,
            self._presence,
            self._suspicion,
            submit=self._submit,
            withdraw=self._withdraw,
            next_id=self.next_id,
        )
        # For those who see models, engine or memory go; see `TurningAway`.
        self.refuse, self.refuse_all = self._turning_away.refuse, self._turning_away.refuse_all
        self.shed = self._turning_away.shed
        self._on_loss = on_loss
        self._timer: asyncio.TimerHandle | None = None

    # --- what the supervisor tells ---

    def next_id(self) -> int:
        return next(self._ids)

    def engine_up(self, link: EngineLink) -> None:
        self._execution.engine_up(link)
        served = self.models_served.by_name.items()
        self._turning_away.refuse_unservable()
        slots = {name: plan.compute_slots for name, plan in served if plan.kv and not plan.failure}
        self._compute_slots = dict(slots)
        self._decide(EngineUp(slots))

    def engine_down(self, loss: EngineLoss) -> None:
        """The engine is gone: what ran goes on with the next one, as what waits does. A request that was the reason
        is refused."""
        self._execution.engine_down()
        lost = self._suspicion.lost(loss, self._open.values())
        self._on_loss(loss, lost.held, lost.refused.request_id if lost.refused is not None else None)
        self._decide(EngineDown(lost.suspects))
        if lost.refused is not None:
            self._suspicion.refuse(lost.refused, loss)
        if self._engine.lifecycle.struggling:
            self._turning_away.refuse_unservable()

    async def close(self) -> None:
        """Keep what can be kept and give all KV memory back, once the engine is gone."""
        await self._runs.gate.close()
        if self._timer is not None:
            self._timer.cancel()
        await self._execution.close()
        await self.conversations.close()

    def on_message(self, message: ToService) -> None:
        request_id = getattr(message, "request_id", None)
        task = self._open.get(request_id) if request_id is not None else None
        if task is None or task.paused:
            return
        writes_first = isinstance(message, Tokens) and isinstance(task, OpenGeneration) and not task.emitted
        if isinstance(message, Failed):
            task.fail(error_from(message))
            self._ended(task)
        elif task.receive(message):
            self._ended(task, message if isinstance(message, Finished) else None)
        elif isinstance(message, PrefillProgress):
            plan = self.models_served.by_name[task.model]
            self.conversations.progressed(plan, task.request_id, message.done_tokens)
        if self._suspicion.proved(task):
            self._decide(Proved(task.request_id))
        if writes_first:
            self.work.look()

    # --- which models are in memory ---

    def use(self, switch: ModelSwitch) -> None:
        """From now on `switch` says which models are in memory, and is told which are needed."""
        self._presence.use(switch)

    def models_changed(self) -> None:
        """Other models than before are ready to start requests."""
        for name in self._presence.come():
            self.slots_changed(name)  # loading may have measured them
        self._decide(PlacesChanged())
        self._presence.forget_told()

    # --- when memory is short ---

    def trim(self) -> None:
        """Have the engine give back what it does not need."""
        self._execution.trim(self.next_id())

    def limit_generations(self, limit: int | None) -> None:
        """At most so many run at once from now on, of all models together; those that run already go on."""
        self._decide(LimitChanged(limit))

    def slots_changed(self, model: str) -> None:
        """As many generations run at once from now on as the model's plan says; those that run already go on."""
        plan = self.models_served.by_name[model]
        if plan.kv is not None and self._compute_slots.get(model) != plan.compute_slots:
            self._compute_slots[model] = plan.compute_slots
            self._decide(SetComputeSlots(model, plan.compute_slots))

    # --- settings that may change while it runs ---

    def tune(self, *, aliases: Mapping[str, str], max_queue: int, schedule: ScheduleSettings, kv: KvSettings) -> None:
        """New settings, from the next decision on. Of `kv` only the bounds of saving count."""
        self.models_served.aliases = dict(aliases)
        self._presence.arrivals.max_queue = max_queue
        self._runs.tune(schedule, max_queue)
        self.conversations.tune(kv)
        self._admission.tune(max_queue=max_queue, aging_s=schedule.aging_s, utilisation=schedule.utilisation)
        self._decide(PlacesChanged())

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
        return plan.provision.context_length

    def signature(self, name: str) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
        plan = self.plan(name)
        refusal = self.models_served.refusal_of(plan)
        if refusal is not None:
            raise refusal
        if plan.signature is None:
            self._presence.wanted(plan.description.name)
            raise EngineNotReady(f"{plan.description.name} is not loaded yet", hint="Ask again in a moment")
        return plan.signature

    async def generate(self, task: GenerationTask) -> OpenGeneration:
        with self._refusals.recorded(
            "generate", task.model, len(task.prompt), task=task.task, request=task.request_key
        ):
            plan = self.models_served.usable(task.model, ("decoder",), "generate text")
            named, adapter = plan.description.name, self.models_served.resolve(task.model)[1]
            plan = self.variants.for_generation(plan, task, adapter)
            task = msgspec.structs.replace(task, model=plan.description.name, adapter=adapter)
            known = self.conversations.known(plan, task)
            self.long_prompts.check(len(task.prompt) - known.tokens)
        strategy = self._strategy_for(plan, len(task.prompt) - known.tokens, known.tokens)
        generation = OpenGeneration(
            self.next_id(),
            task,
            prefill_chunk=strategy.prefill_chunk,
            max_draft=min(strategy.max_draft, plan.max_draft),
            variant=plan.description.name if plan.description.variant_of else "",
            stands_in_for=named if named != plan.description.name else "",
            close=self._closed,
            withdraw=self._withdraw,
        )
        generation.strategy_id = self._feedback.known(strategy)
        self._submit(generation, generation.submission(known))
        return generation

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

    def variant_states(self, name: str) -> list[VariantState]:
        return variant_states_of(self.models_served.variants(name), self._presence.residency)

    def kept(self, client: str | None) -> list[KeptConversation]:
        return self.conversations.kept(client)

    async def forget(self, client: str | None, model: str | None = None) -> int:
        forgotten = await self.conversations.forget(client, model)
        for plan in self.models_served.variants(model) if model is not None else ():
            forgotten += await self.conversations.forget(client, plan.description.name)
        return forgotten

    async def recycle(self, reason: str) -> Recycled:
        held = sum(task.in_engine for task in self._open.values())
        return await replace_engine(self._engine, reason, open_requests=held, clock=self._clock)

    def open_tasks(self) -> Iterable[OpenTask]:
        return self._open.values()

    def begun_models(self) -> set[str]:
        """Models of the requests that an engine has held already."""
        return {task.model for task in self._open.values() if task.has_started}

    def health(self) -> ServiceHealth:
        return health_of(
            self.plans(),
            self._engine,
            waiting=self.waiting,
            running=self.running,
            uptime_s=self._clock() - self._started_s,
            storage_off=self._storage_off(),
        )

    def state(self) -> ServiceState:
        residency = {name: self._presence.residency(name) for name in self.models_served.by_name}
        return state_of(
            self.plans(),
            self._engine,
            self.health(),
            self._feedback,
            self.figures(),
            residency=residency,
            watched=self.watched,
        )

    def figures(self) -> ScheduleFigures:
        pools = self._admission.figures(self._clock())
        return figures_of(pools, self.models_served, self.conversations, self._execution.preemptions)

    # --- figures for metrics ---

    @property
    def waiting(self) -> int:
        return self._admission.waiting + self._presence.arrivals.waiting

    @property
    def running(self) -> int:
        return self._admission.running

    def kv_resident_bytes(self) -> int:
        return sum(plan.kv.resident_bytes() for plan in self.plans() if plan.kv)

    # --- Places, for admission ---

    def ready(self, model: str, *, begun: bool) -> bool:
        return self._presence.ready(model, begun=begun)

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

    def _strategy_for(self, plan: ModelPlan, tokens: int, cached_tokens: int) -> Strategy:
        strategy = self.strategy_for(plan, tokens, cached_tokens) or planned_strategy(plan)
        # Who computes is settled by `variants`; a variant that was named and is not it has no part in how it ends.
        return msgspec.structs.replace(strategy, variant="") if strategy.variant else strategy

    def _places_changed(self) -> None:
        self._decide(PlacesChanged())

    def _submit(self, task: OpenTask, submit: Submit) -> None:
        self._suspicion.check(task)
        if not task.strategy_id:
            plan = self.models_served.by_name[task.model]
            task.strategy_id = self._feedback.known(self._strategy_for(plan, submit.tokens, 0))
        self._open[task.request_id] = task
        refused = self._decide(submit, newcomer=task.request_id)
        if refused is not None:
            raise refused

    def _withdraw(self, request_id: int) -> None:
        self._decide(Withdraw(request_id))

    def _closed(self, task: OpenTask, record: TaskRecord) -> None:
        self._suspicion.over(task.request_id)
        self._feedback.record(record)
        self.on_task(record)

    def _paused(self, task: OpenGeneration) -> None:
        task.pausing, task.paused = False, True
        self._decide(Paused(task.request_id))

    def _ended(self, task: OpenTask, end: Finished | None = None) -> None:
        """The engine is done with the task, for good or until it goes on."""
        if not isinstance(task, OpenGeneration):
            del self._open[task.request_id]
            self._decide(Ended(task.request_id, failed=task.failed))
            return
        if task.pausing and end is not None and end.reason == "cancelled":
            self._paused(task)
            return
        if end is not None:
            task.finish(end.reason)
        self._execution.give_back(task)
        self._runs.gate.engine_load_changed()
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

    def _decide(self, event: Event, *, newcomer: int | None = None) -> MagnitudeError | None:
        """Let admission decide and carry it out. Returns why the `newcomer` was rejected, if it was."""
        refused: MagnitudeError | None = None
        for effect in self._admission.apply(event, self._clock()):
            error = self._execution.carry_out(effect)
            if isinstance(effect, Reject) and effect.request_id == newcomer:
                refused = error
        self.work.look()
        self._wake_again()
        self._presence.demand_changed()
        self.variants.look(idle=not self.running and not self.waiting)
        return refused

    def _want_variant(self, name: str) -> None:
        # Not at once: this is told in the midst of a decision.
        asyncio.get_running_loop().call_soon(self._presence.wanted, name)

    def _wake_again(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = self._clock()
        wake_s = self._admission.next_wake_s(now_s)
        if wake_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, wake_s - now_s), self._decide, Tick())
