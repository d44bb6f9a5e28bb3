"""How a model runs as it was planned and loaded, in the terms of strategies."""

from __future__ import annotations

from magnitude.engine.session_spec import SessionSpec
from magnitude.kernels.offered import offered_graphs
from magnitude.policy.rules import ModelFacts
from magnitude.policy.strategy import Strategy
from magnitude.schedule.plan import ModelPlan


def model_facts(plan: ModelPlan, variants: tuple[str, ...] = ()) -> ModelFacts:
    """What the strategy loop must know of a model that is loaded. `variants` may compute in its place, the smallest
    first."""
    description, provision = plan.description, plan.provision
    return ModelFacts(
        name=description.name,
        kind=description.kind,
        own=SessionSpec(threads=provision.threads),
        # A model that serves on its fallback graph has no graph of this kind that could be trusted.
        graphs=offered_graphs(description) if plan.graph_file == description.graph_file else (),
        chunk=provision.prefill_chunk,
        # The knee of its throughput, once that is measured.
        max_batch=plan.measured_slots,
        max_draft=plan.max_draft,
        kv_type=provision.kv_type,
        kv_budget_bytes=provision.kv_budget_bytes,
        variants=variants,
        weight_bytes=description.weight_bytes,
    )


def planned_strategy(plan: ModelPlan) -> Strategy:
    """What is in force where nobody chooses."""
    facts = model_facts(plan)
    decoder = plan.kv is not None
    return Strategy(
        prefill=facts.own,
        decode=facts.own,
        kv_type=facts.kv_type,
        prefill_chunk=facts.chunk,
        max_batch=facts.max_batch if decoder else 0,
        max_draft=facts.max_draft,
        kv_budget_bytes=facts.kv_budget_bytes,
    )
