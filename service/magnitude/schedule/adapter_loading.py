"""Giving a freshly loaded model its adapters, and finding which one a request means."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from magnitude.engine.protocol import Done, Failed, LoadAdapter
from magnitude.errors import EngineNotReady
from magnitude.models.adapters import resolve_name
from magnitude.schedule.fresh_engine import FreshEngine
from magnitude.schedule.plan import ModelPlan

log = logging.getLogger("magnitude.schedule")


async def load_adapters(plan: ModelPlan, graph_file: str, engine: FreshEngine) -> None:
    """Load the plan's adapters into the model that `engine` has just loaded on `graph_file`.

    One that cannot be loaded does not take the model along: its requests are refused, with the reason.
    """
    plan.adapter_failures = {}
    for adapter in plan.adapters:
        if graph_file != plan.description.lora_graph_file:
            plan.adapter_failures[adapter.name] = "its base is on the fallback graph, which takes no adapters"
            continue
        request_id = engine.next_id()
        message = LoadAdapter(
            request_id=request_id,
            model=plan.description.name,
            name=adapter.name,
            folder=adapter.folder,
            adapter_hash=adapter.adapter_hash,
        )
        answer = await engine.ask(message, request_id)
        if isinstance(answer, Done):
            log.info("adapter loaded", extra={"fields": {"adapter": adapter.full_name, "rank": adapter.rank}})
            continue
        reason = answer.message if isinstance(answer, Failed) else f"unexpected answer {type(answer).__name__}"
        plan.adapter_failures[adapter.name] = reason
        log.error("adapter not loaded", extra={"fields": {"adapter": adapter.full_name, "reason": reason}})


def plan_and_adapter(name: str, plans: Mapping[str, ModelPlan], *, default: str) -> tuple[ModelPlan | None, str]:
    """The plan and the adapter that a request's `name` means; None for a model that is not there.

    Raises `ModelNotFound` for an adapter that is not there, `EngineNotReady` for one that could not be loaded.
    """
    adapters = [adapter for plan in plans.values() for adapter in plan.adapters]
    model, adapter = resolve_name(name, models=plans, adapters=adapters, default=default)
    plan = plans.get(model)
    if plan is not None and (reason := plan.adapter_failures.get(adapter)):
        raise EngineNotReady(
            f"the adapter {adapter!r} of {model} could not be loaded: {reason}",
            hint=f"Import it again (`magnitude rm {model}:{adapter}`), then restart the service",
        )
    return plan, adapter
