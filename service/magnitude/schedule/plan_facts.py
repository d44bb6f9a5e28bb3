"""How a model is served, for those who write it down."""

from __future__ import annotations

import msgspec

from magnitude.feedback.bundles import ServedModel
from magnitude.feedback.circumstances import PlanFacts
from magnitude.schedule.plan import ModelPlan


def facts_of(plan: ModelPlan, *, board: str = "", ort_version: str = "") -> PlanFacts:
    """`board` and `ort_version` as the model's figures are bound to them."""
    provision = plan.provision
    return PlanFacts(
        model=plan.description.name,
        model_hash=plan.description.model_hash,
        graph_file=plan.graph_file,
        threads=provision.threads,
        max_batch=provision.max_batch,
        kv_type=provision.kv_type or "",
        context_tokens=provision.context_length,
        prefill_chunk_tokens=provision.prefill_chunk if plan.kv is not None else 0,
        max_draft_tokens=plan.max_draft,
        draft_model=plan.draft.name if plan.draft is not None else "",
        board=board,
        ort_version=ort_version,
        weight_bytes=plan.description.weight_bytes,
    )


def served_as(plan: ModelPlan) -> ServedModel:
    return ServedModel(
        # The graph in use: a model whose own graph failed its golden set serves on another one.
        description=msgspec.structs.replace(plan.description, graph_file=plan.graph_file),
        facts=facts_of(plan),
        slots=plan.provision.slots,
        max_inter_token_ms=plan.provision.max_inter_token_ms,
        draft=plan.draft,
        adapters=plan.adapters,
    )
