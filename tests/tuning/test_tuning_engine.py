"""A sweep in a real engine, with a tiny model."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from magnitude.errors import EngineError
from magnitude.models.description import ModelDescription
from magnitude.policy.learned import Binding
from magnitude.policy.provision import Provision
from magnitude.policy.terms import BoardSeen
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.planned_strategy import model_facts
from magnitude.tuning.kept import SweepFile
from magnitude.tuning.lone_engine import LoneEngine
from magnitude.tuning.run import Tuning
from magnitude.tuning.sweep import Step, Sweep
from tests.engine.tiny_decoder import write_decoder

BOARD = BoardSeen(cores=(0, 1), usable=min(2, os.cpu_count() or 1))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelDescription:
    return write_decoder(tmp_path_factory.mktemp("tiny"))


def plan_of(model: ModelDescription) -> ModelPlan:
    provision = Provision(threads=1, prefill_chunk=32, max_batch=2, slots=2, context_length=96, kv_type="float32")
    return ModelPlan(model, provision)


def tuned(model: ModelDescription, sweep: Sweep | None = None, **options: object) -> tuple[Sweep, Tuning]:
    async def run() -> tuple[Sweep, Tuning]:
        plan = plan_of(model)
        own = sweep or Sweep(model_facts(plan), BOARD, least_gain=0.03)
        async with LoneEngine(plan) as engine:
            tuning = Tuning(engine, own, **options)
            await tuning.run()
        return own, tuning

    return asyncio.run(run())


def test_every_situation_is_compared_and_every_session_is_proven(model: ModelDescription) -> None:
    sweep, tuning = tuned(model)
    assert {(step.part, step.rows) for step in sweep.compared} >= {("prefill", 1), ("decode", 1), ("decode", 2)}
    assert all(not one.refused and one.pairs for one in sweep.compared.values())
    assert tuning.verified and all(verdict.equal for verdict in tuning.verified.values())
    assert sweep.entries()


def test_a_session_that_takes_more_than_is_allowed_is_left_out_with_its_reason(model: ModelDescription) -> None:
    sweep, _ = tuned(model, session_bytes=-1)
    assert all("MB" in one.refused for one in sweep.compared.values() if one.step.challenger.session != one.step.base)


def test_a_graph_that_is_not_there_is_refused_and_the_sweep_goes_on(model: ModelDescription) -> None:
    facts = msgspec.structs.replace(model_facts(plan_of(model)), graphs=("missing.onnx",))
    sweep, _ = tuned(model, Sweep(facts, BOARD, least_gain=0.03))
    missing = [one for one in sweep.compared.values() if "missing.onnx" in one.step.challenger.choice_id]
    assert missing and all(one.refused for one in missing)
    assert sweep.entries()


def test_a_lost_engine_ends_the_sweep_and_what_was_compared_is_kept(model: ModelDescription, tmp_path: Path) -> None:
    binding = Binding(board="b", model="tiny", model_hash="0" * 64, ort_version="1")
    kept = SweepFile(tmp_path, binding, BOARD)

    async def run() -> None:
        plan = plan_of(model)
        async with LoneEngine(plan) as engine:

            def told(step: Step, done: int, known: int) -> None:
                if done == 2 and engine._engine is not None:
                    engine._engine.kill()

            sweep = Sweep(model_facts(plan), BOARD, least_gain=0.03)
            await Tuning(engine, sweep, told=told, keep=kept.save).run()

    with pytest.raises(EngineError):
        asyncio.run(run())
    assert len(kept.load().compared) == 2
    other = SweepFile(tmp_path, msgspec.structs.replace(binding, ort_version="2"), BOARD)
    assert other.load().compared == ()
