"""What is written down of the requests that an engine held, and of how models are served."""

from __future__ import annotations

import asyncio
from pathlib import Path

from magnitude.engine.message import Message
from magnitude.engine.protocol import Embed, EmbedAndRank, InferTensors, SamplerSettings
from magnitude.models.catalogue import open_folder
from magnitude.policy.provision import Provision
from magnitude.schedule.inference import GenerationTask
from magnitude.schedule.open_generation import OpenGeneration
from magnitude.schedule.open_tasks import OpenRun
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.plan_facts import facts_of, served_as
from magnitude.schedule.victims import victims_of

GOLDEN = Path(__file__).parent.parent / "golden"
STRATEGY = Provision(threads=3, prefill_chunk=64, max_batch=2, slots=4, context_length=32, kv_type="float32")


def run(request_id: int, message: Message) -> OpenRun:
    return OpenRun(
        request_id, "m", message, kind="embed", tokens=0, close=lambda task, record: None, withdraw=lambda key: None
    )


def test_each_kind_of_request_is_told_with_its_lengths() -> None:
    async def made() -> None:
        task = GenerationTask(
            request_key="r", model="m", prompt=[1, 2, 3], max_new_tokens=9, sampler=SamplerSettings(seed=5)
        )
        generation = OpenGeneration(
            1, task, prefill_chunk=64, max_draft=0, close=lambda task, record: None, withdraw=lambda key: None
        )
        generation.emitted = [7, 8]
        generation.lost()
        runs = [
            run(2, Embed(request_id=2, model="m", inputs=[[1, 2], [3]])),
            run(3, EmbedAndRank(request_id=3, model="m", query=[1], documents=[[2, 3], [4]], top_k=1)),
            run(4, InferTensors(request_id=4, model="m", inputs=[])),
        ]
        victims = victims_of([generation, *runs], refused=1)
        assert [victim.kind for victim in victims] == ["generate", "embed", "embed", "infer"]
        assert [victim.prompt_tokens for victim in victims] == [3, 3, 4, 0]
        first = victims[0]
        assert (first.emitted_tokens, first.strikes, first.refused) == (2, 1, True)
        assert not victims[1].refused
        # What was emitted will be generated again: a replay begins at the beginning.
        assert getattr(first.message, "prompt", None) == [1, 2, 3]
        assert getattr(first.message, "emitted", None) == []

    asyncio.run(made())


def test_a_model_on_its_fallback_graph_is_written_down_with_that_graph() -> None:
    plan = ModelPlan(open_folder(GOLDEN / "genai_tiny_llama"), STRATEGY)
    before = facts_of(plan)
    plan.graph_file = "fallback.onnx"
    assert served_as(plan).description.graph_file == "fallback.onnx"
    assert facts_of(plan).plan_id != before.plan_id
    assert (before.threads, before.max_batch, before.kv_type, before.context_tokens) == (3, 2, "float32", 32)
