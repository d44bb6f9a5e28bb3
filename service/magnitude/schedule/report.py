"""What the service says of itself: health for probes, state for people."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import psutil

from magnitude import __version__
from magnitude.board.sim.told import SimulatedState
from magnitude.engine.protocol import Heartbeat
from magnitude.feedback.counter_sight import CountersState
from magnitude.feedback.operators import OperatorFigures
from magnitude.feedback.records import Feedback
from magnitude.governor.memory_state import MemoryState
from magnitude.governor.thermal_report import BoardView
from magnitude.policy.field_test import FieldTest
from magnitude.schedule.figures import ModelFigures, ScheduleFigures
from magnitude.schedule.inference import ModelState, ServiceHealth, ServiceState, VariantState
from magnitude.schedule.pacing import Shares
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.planned_strategy import planned_strategy
from magnitude.schedule.pool import PoolFigures
from magnitude.schedule.residency import State
from magnitude.schedule.strategy_report import StrategyState, not_chosen
from magnitude.supervise.lifecycle import MANY_LOSSES, RECENT_S, EngineLifecycle, Phase
from magnitude.supervise.recovery import Recovery

if TYPE_CHECKING:
    from magnitude.schedule.conversations import Conversations
    from magnitude.schedule.served_models import ServedModels


class Watched:
    """What those who watch over memory and the board have to show; each of them puts in its own."""

    def __init__(self) -> None:
        self.memory: Callable[[], MemoryState] = MemoryState
        self.board: Callable[[], BoardView] = BoardView
        self.pace: Callable[[], Mapping[str, Shares]] = dict
        self.strategies: Callable[[], Mapping[str, StrategyState]] = dict
        self.operators: Callable[[], list[OperatorFigures]] = list
        self.counters: Callable[[], CountersState] = CountersState
        self.field_test = FieldTest()
        self.simulated_board: Callable[[], SimulatedState | None] = lambda: None


class EngineView(Protocol):
    """What is seen of the engine from outside."""

    @property
    def lifecycle(self) -> EngineLifecycle: ...

    @property
    def pid(self) -> int | None: ...

    @property
    def heartbeat(self) -> Heartbeat | None: ...

    @property
    def recycles(self) -> int: ...

    @property
    def recent_losses(self) -> int: ...

    @property
    def last_recovery(self) -> Recovery | None: ...

    @property
    def spare_pid(self) -> int | None: ...

    @property
    def spare_ready(self) -> bool: ...

    def recycle(self, reason: str) -> Awaitable[None]: ...


def health_of(
    plans: Sequence[ModelPlan],
    engine: EngineView,
    *,
    waiting: int,
    running: int,
    uptime_s: float,
    storage_off: Sequence[str] = (),
) -> ServiceHealth:
    """Ready when the engine is up and every model that is loaded at start can serve. A model on its fallback graph is
    ready, and told among the reasons; so is one that could not be loaded on demand. One that nobody asks for and
    that is not loaded therefore is no fault. An engine that is lost again and again is told as well, and by
    `storage_off` what is not kept: no fault of what serves.
    """
    lifecycle = engine.lifecycle
    failed = [plan for plan in plans if plan.failure]
    reasons = [f"{plan.description.name}: {plan.failure}" for plan in failed if plan.stay != "on_demand"]
    if lifecycle.phase is not Phase.UP:
        reasons.insert(0, f"engine {lifecycle.phase.value}: {lifecycle.reason}")
    spared = [f"{plan.description.name}: {plan.failure}" for plan in failed if plan.stay == "on_demand"]
    degraded = [f"{plan.description.name} is {plan.degraded}" for plan in plans if plan.degraded and not plan.failure]
    degraded += [
        f"{plan.description.name} is not loaded by its kernel plan: {plan.graph_refused}"
        for plan in plans
        if plan.graph_refused and not plan.failure
    ]
    if engine.recent_losses >= MANY_LOSSES and lifecycle.accident is not None:
        minutes = round(RECENT_S / 60)
        degraded.append(
            f"the engine was lost {engine.recent_losses} times in {minutes} minutes: {lifecycle.accident.reason}"
        )
    return ServiceHealth(
        live=True,
        ready=not reasons,
        reasons=reasons + spared + degraded + list(storage_off),
        engine_pid=engine.pid,
        engine_restarts=lifecycle.restarts,
        queue_depth=waiting,
        running=running,
        uptime_s=uptime_s,
        persistence="off" if storage_off else "on",
    )


def state_of(
    plans: Sequence[ModelPlan],
    engine: EngineView,
    health: ServiceHealth,
    feedback: Feedback,
    schedule: ScheduleFigures,
    *,
    residency: Mapping[str, State],
    watched: Watched,
) -> ServiceState:
    heartbeat, board = engine.heartbeat, watched.board()
    return ServiceState(
        version=__version__,
        health=health,
        engine_phase=engine.lifecycle.phase.value,
        engine_steps=heartbeat.steps if heartbeat else 0,
        engine_open_requests=heartbeat.open_requests if heartbeat else 0,
        engine_recycles=engine.recycles,
        engine_recent_losses=engine.recent_losses,
        engine_last_loss=engine.lifecycle.loss.reason if engine.lifecycle.loss else "",
        engine_last_recovery=engine.last_recovery,
        spare_engine_pid=engine.spare_pid,
        spare_engine_ready=engine.spare_ready,
        engine_rss_bytes=heartbeat.rss_bytes if heartbeat else 0,
        service_rss_bytes=psutil.Process().memory_info().rss,
        models=[_model_state(plan, residency[plan.description.name]) for plan in plans],
        figures=feedback.figures(),
        figures_by_heat=feedback.figures_by_heat(),
        schedule=schedule,
        runs=feedback.runs.figures(),
        run_times=feedback.runs.times,
        memory=watched.memory(),
        board=board.board,
        thermal=board.thermal,
        power=board.power,
        pace=dict(watched.pace()),
        strategy=_strategies(plans, watched.strategies()),
        operators=watched.operators(),
        counters=watched.counters(),
        field_test=watched.field_test,
        simulated_board=watched.simulated_board(),
    )


def variant_states_of(plans: Sequence[ModelPlan], residency: Callable[[str], State]) -> list[VariantState]:
    return [
        VariantState(
            name=plan.description.name,
            precision=plan.description.precision,
            weight_bytes=plan.description.weight_bytes,
            residency=residency(plan.description.name),
            outside=plan.outside,
        )
        for plan in plans
    ]


def figures_of(
    pools: Sequence[PoolFigures], models: ServedModels, conversations: Conversations, preemptions: Mapping[str, int]
) -> ScheduleFigures:
    """Slots, prefixes and conversations of each model that generates; the other runs in sum."""
    found: dict[str, ModelFigures] = {}
    runs_running = runs_waiting = 0
    for pool in pools:
        plan = models.by_name.get(pool.name)
        if plan is None or plan.table is None:
            runs_running += pool.running
            runs_waiting += sum(pool.waiting.values())
            continue
        found[pool.name] = ModelFigures(
            kv=plan.table.figures(),
            capacity=pool.capacity,
            segments=pool.segments,
            running=pool.running,
            waiting=pool.waiting,
            paused=pool.paused,
            reserved=sum(held.requests for held in pool.reservations),
            preemptions=preemptions.get(pool.name, 0),
            saved_bytes=conversations.saved_bytes(pool.name),
        )
    return ScheduleFigures(models=found, runs_running=runs_running, runs_waiting=runs_waiting)


def _strategies(plans: Sequence[ModelPlan], chosen: Mapping[str, StrategyState]) -> dict[str, StrategyState]:
    names = {plan.description.name: plan for plan in plans}
    return {name: chosen.get(name) or not_chosen(planned_strategy(plan)) for name, plan in names.items()}


def _model_state(plan: ModelPlan, residency: State) -> ModelState:
    return ModelState(
        name=plan.description.name,
        kind=plan.description.kind,
        family=plan.description.family,
        failure=str(plan.failure) if plan.failure else "",
        weight_bytes=plan.description.weight_bytes,
        threads=plan.provision.threads,
        slots=plan.provision.slots,
        context_tokens=plan.provision.context_length,
        kv_type=plan.provision.kv_type,
        kv_resident_bytes=plan.kv.resident_bytes() if plan.kv else 0,
        kv_reserved_bytes=plan.provision.kv_budget_bytes,
        residency=residency,
        stay=plan.stay,
        variant_of=plan.description.variant_of,
        revived_conversations=plan.revived.conversations,
    )
