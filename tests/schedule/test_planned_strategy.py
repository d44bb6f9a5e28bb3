"""A model as it was planned and loaded, in the terms of strategies."""

from __future__ import annotations

import msgspec
from sample_plans import decoder_plan, encoder_plan

from magnitude.policy.optimizer import Optimizer
from magnitude.policy.rules import Rules
from magnitude.policy.terms import EngineChanged
from magnitude.schedule.planned_strategy import model_facts, planned_strategy


def test_generations_at_once_are_those_that_were_measured_and_drafts_only_exact_ones() -> None:
    plan = decoder_plan(slots=4, max_draft=8)
    plan.measured_slots = 3
    plan.chosen_slots = 1
    assert (model_facts(plan).max_batch, model_facts(plan).max_draft) == (3, 0)
    plan.verifies_exactly = True
    assert model_facts(plan).max_draft == 8


def test_fusion_plans_are_offered_only_while_the_models_own_graph_serves() -> None:
    plan = decoder_plan()
    plan.description = msgspec.structs.replace(plan.description, graphs=("fused.onnx",))
    assert model_facts(plan).graphs == ("fused.onnx",)
    plan.graph_file = "fallback.onnx"
    assert model_facts(plan).graphs == ()


def test_the_loop_begins_with_what_was_planned() -> None:
    for plan in (decoder_plan(max_draft=8), encoder_plan()):
        optimizer = Optimizer(model_facts(plan), Rules())
        optimizer.apply(EngineChanged(up=True), 0.0)
        assert optimizer.strategy == planned_strategy(plan)
