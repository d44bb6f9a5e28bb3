"""A model's first work: short, real, and told truthfully when it fails."""

from __future__ import annotations

import asyncio

import pytest
from sample_plans import of_this_test
from scripted_engine import ScriptedEngine

from magnitude.engine.message import Message
from magnitude.engine.protocol import Embed, Failed, Finished, Generate, ToService, Vectors
from magnitude.models.description import DecoderShape, EncoderShape, Kind, ModelDescription
from magnitude.policy.provision import Provision
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.warm_up import NEW_TOKENS, warm_up


def plan(kind: Kind) -> ModelPlan:
    decodes = kind == "decoder"
    shape = DecoderShape(layers=1, kv_heads=1, head_dim=4, vocab_size=16, hidden_size=8, context_length=64)
    description = ModelDescription(
        name="m",
        kind=kind,
        family="any",
        folder="/nowhere",
        graph_file="model.onnx",
        model_hash="hash",
        weight_bytes=1,
        decoder=shape if decodes else None,
        encoder=EncoderShape(width=2, max_tokens=64) if kind == "embedder" else None,
    )
    kv_type = "float32" if decodes else None
    slots, context = (1, 64) if decodes else (0, 0)
    provision = Provision(threads=1, prefill_chunk=8, slots=slots, context_length=context, kv_type=kv_type)
    return of_this_test(ModelPlan(description, provision))


def works(message: Message) -> ToService:
    if isinstance(message, Generate):
        return Finished(
            request_id=message.request_id,
            reason="length",
            prompt_tokens=len(message.prompt),
            new_tokens=message.max_new_tokens,
            wait_s=0.0,
            prefill_s=0.1,
            decode_s=0.1,
        )
    assert isinstance(message, Embed)
    return Vectors(request_id=message.request_id, count=1, width=1, data=b"\0\0\0\0", run_s=0.1)


def fails(message: Message) -> ToService:
    return Failed(request_id=1, code="out_of_memory", message="no memory for the run", permanent=False)


def test_a_decoder_takes_in_a_prompt_and_decodes_a_step() -> None:
    engine = ScriptedEngine(works)
    assert asyncio.run(warm_up(plan("decoder"), engine)) is None
    (sent,) = engine.sent
    assert isinstance(sent, Generate)
    assert sent.max_new_tokens == NEW_TOKENS > 1  # the first token is the prefill's
    assert sent.prompt


def test_its_slot_is_the_one_that_no_request_gets() -> None:
    engine = ScriptedEngine(works)
    decoder = plan("decoder")
    asyncio.run(warm_up(decoder, engine))
    assert isinstance(engine.sent[0], Generate)
    assert engine.sent[0].slot == decoder.scratch_slot


def test_an_encoder_encodes_once() -> None:
    engine = ScriptedEngine(works)
    assert asyncio.run(warm_up(plan("embedder"), engine)) is None
    assert [type(message) for message in engine.sent] == [Embed]


def test_a_graph_of_unknown_inputs_is_not_guessed_at() -> None:
    engine = ScriptedEngine(works)
    assert asyncio.run(warm_up(plan("tensors"), engine)) is None
    assert engine.sent == []


@pytest.mark.parametrize("kind", ["decoder", "embedder"])
def test_a_failure_is_the_models_own(kind: Kind) -> None:
    failure = asyncio.run(warm_up(plan(kind), ScriptedEngine(fails)))
    assert failure is not None
    assert failure.code == "out_of_memory"


def test_an_answer_that_is_none_is_a_failure_with_a_hint() -> None:
    def cut_short(message: Message) -> ToService:
        assert isinstance(message, Generate)
        return Finished(
            request_id=message.request_id,
            reason="stop",
            prompt_tokens=4,
            new_tokens=0,
            wait_s=0.0,
            prefill_s=0.1,
            decode_s=0.0,
        )

    failure = asyncio.run(warm_up(plan("decoder"), ScriptedEngine(cut_short)))
    assert failure is not None
    assert failure.code == "warm_up_failed"
    assert failure.hint
