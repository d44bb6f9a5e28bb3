"""What the service says of itself: health for probes, state for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import psutil

from magnitude import __version__
from magnitude.engine.protocol import Heartbeat
from magnitude.feedback.records import Feedback
from magnitude.schedule.figures import ScheduleFigures
from magnitude.schedule.inference import ModelState, ServiceHealth, ServiceState
from magnitude.schedule.plan import ModelPlan
from magnitude.supervise.lifecycle import EngineLifecycle, Phase


class EngineView(Protocol):
    """What is seen of the engine from outside."""

    @property
    def lifecycle(self) -> EngineLifecycle: ...

    @property
    def pid(self) -> int | None: ...

    @property
    def heartbeat(self) -> Heartbeat | None: ...


def health_of(
    plans: Sequence[ModelPlan], engine: EngineView, *, waiting: int, running: int, uptime_s: float
) -> ServiceHealth:
    """Ready when the engine is up and every planned model can serve. A model on its fallback graph is ready, and
    told among the reasons."""
    lifecycle = engine.lifecycle
    reasons = [f"{plan.description.name}: {plan.failure}" for plan in plans if plan.failure]
    if lifecycle.phase is not Phase.UP:
        reasons.insert(0, f"engine {lifecycle.phase.value}: {lifecycle.reason}")
    degraded = [f"{plan.description.name} is {plan.degraded}" for plan in plans if plan.degraded and not plan.failure]
    return ServiceHealth(
        live=True,
        ready=not reasons,
        reasons=reasons + degraded,
        engine_pid=engine.pid,
        engine_restarts=lifecycle.restarts,
        queue_depth=waiting,
        running=running,
        uptime_s=uptime_s,
    )


def state_of(
    plans: Sequence[ModelPlan],
    engine: EngineView,
    health: ServiceHealth,
    feedback: Feedback,
    schedule: ScheduleFigures,
) -> ServiceState:
    heartbeat = engine.heartbeat
    return ServiceState(
        version=__version__,
        health=health,
        engine_phase=engine.lifecycle.phase.value,
        engine_steps=heartbeat.steps if heartbeat else 0,
        engine_open_requests=heartbeat.open_requests if heartbeat else 0,
        engine_rss_bytes=heartbeat.rss_bytes if heartbeat else 0,
        service_rss_bytes=psutil.Process().memory_info().rss,
        models=[_model_state(plan) for plan in plans],
        figures=feedback.figures(),
        schedule=schedule,
        runs=feedback.runs.figures(),
    )


def _model_state(plan: ModelPlan) -> ModelState:
    return ModelState(
        name=plan.description.name,
        kind=plan.description.kind,
        family=plan.description.family,
        failure=str(plan.failure) if plan.failure else "",
        weight_bytes=plan.description.weight_bytes,
        threads=plan.strategy.threads,
        slots=plan.strategy.slots,
        context_tokens=plan.strategy.context_length,
        kv_type=plan.strategy.kv_type,
        kv_resident_bytes=plan.kv.resident_bytes() if plan.kv else 0,
        kv_reserved_bytes=plan.strategy.kv_budget_bytes,
    )
