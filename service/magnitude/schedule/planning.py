"""Plans for the models that are to be served, such that those in memory together fit."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from magnitude.config import Settings
from magnitude.errors import BudgetExceeded
from magnitude.models.adapters import with_adapters
from magnitude.models.description import ModelDescription
from magnitude.policy import fitting
from magnitude.policy.fitting import account_bytes, fit_each, fit_together, pool_refusal
from magnitude.policy.own_graph import own_graph
from magnitude.policy.provision import BoardFacts, Provision, default_provision
from magnitude.policy.selection import Selection
from magnitude.schedule.model_switch import need_of
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.residency import Residency

# So much longer than what fits a context may be: KV is bounded by its budget, not by the context, so that only one
# conversation that is longer than any before takes more, and no more than this.
NEARLY = 0.05

log = logging.getLogger("magnitude.schedule")


def plan_models(
    settings: Settings,
    selection: Selection,
    board: BoardFacts,
    free_bytes: int,
    draft: ModelDescription | None = None,
    *,
    contexts: Mapping[str, int] | None = None,
) -> tuple[list[ModelPlan], dict[str, BudgetExceeded]]:
    """Plans in the order of `selection`, those that are loaded at start first, and by name why a model has none.

    The models of the start fit into `free_bytes` together. One that does not is loaded on demand, as those are that
    were not chosen for the start: each of them fits beside the pinned ones. `draft` drafts for the chat model.
    `contexts` are those of models whose KV memory is there from the service before (`kept_context`).
    Raises `BudgetExceeded` when the first model does not fit alone.
    """

    def wish(model: ModelDescription) -> Provision:
        return default_provision(board, settings.engine, model.decoder, settings.kv)

    start, displaced = [], []
    if selection.at_start:
        together = fit_together(selection.at_start, wish, free_bytes, pinned=selection.pinned)
        start, displaced = together.served, [model for model, _ in together.left_out]
    pinned = [entry for entry in start if entry[0].name in selection.pinned]
    on_demand = fit_each([*displaced, *selection.on_demand], wish, free_bytes, pinned)
    for model, error in on_demand.left_out:
        log.error("model left out", extra={"fields": {"model": model.name, "reason": str(error)}})
    share = settings.kv.share_prefixes
    plans = []
    for model, fitted in [*start, *on_demand.served]:
        provision = kept_context(fitted, wish(model), (contexts or {}).get(model.name, 0))
        _report_cut(model, wish(model), provision, free_bytes)
        served, adapters = with_adapters(model)
        own = own_graph(served, settings.engine.graph, board.no_kernels)
        plan = ModelPlan(own.model, provision, adapters=adapters, share_prefixes=share, stay="on_demand")
        plan.graph_refused = own.refused
        _report_refused(plan)
        plans.append(plan)
    for plan in plans[: len(start)]:
        plan.stay = "pinned" if plan.description.name in selection.pinned else "at_start"
    if plans and plans[0].provision.max_draft:
        plans[0].draft = draft
    return plans, {model.name: error for model, error in on_demand.left_out}


def kept_context(fitted: Provision, wished: Provision, before: int) -> Provision:
    """`fitted`, with the context `before` when the memory decided about its own and both are nearly the same.

    What is free differs by some per cent from start to start. Memory of another context is of no use, so that each
    time all conversations would be lost for a context that is hardly another one.
    """
    cut = fitted.context_length < wished.context_length
    near = abs(before - fitted.context_length) <= NEARLY * fitted.context_length
    if not cut or not near or before > wished.context_length:
        return fitted
    return msgspec.structs.replace(fitted, context_length=before)


def residency_of(plans: Sequence[ModelPlan], *, free_bytes: int, keep_alive_s: float) -> Residency:
    """Who is in memory when, of `plans` in the memory that they were made for."""
    return Residency(
        [need_of(plan) for plan in plans], budget_bytes=account_bytes(free_bytes), keep_alive_s=keep_alive_s
    )


def _report_refused(plan: ModelPlan) -> None:
    if plan.graph_refused:
        hint = "The service works without kernels. See 'magnitude doctor' and 'magnitude show' for what is missing"
        fields = {"model": plan.description.name, "reason": plan.graph_refused, "hint": hint}
        log.warning("not loaded by its kernel plan as engine.graph says", extra={"fields": fields})


def _report_cut(model: ModelDescription, wished: Provision, got: Provision, free_bytes: int) -> None:
    if got.context_length != wished.context_length:
        fields = {
            "model": model.name,
            "wished": wished.context_length,
            "context": got.context_length,
            "slots": got.slots,
            "free_mb": free_bytes // 1_000_000,
        }
        log.warning("context shortened to fit the memory", extra={"fields": fields})
    if got.kv_budget_bytes < wished.kv_budget_bytes:
        reason = pool_refusal(fitting.need_of(model, wished).pool_bytes, account_bytes(free_bytes))
        sizes = {"wished_mb": wished.kv_budget_bytes // 1_000_000, "kv_mb": got.kv_budget_bytes // 1_000_000}
        fields = {"model": model.name, **sizes, "reason": reason or "the rest of the memory is taken"}
        log.warning("KV cut to fit the memory", extra={"fields": fields})
