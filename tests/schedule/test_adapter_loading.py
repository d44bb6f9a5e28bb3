"""Adapters on the service's side: loaded beside their base, found by name, and part of what keys KV."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from scripted_engine import ScriptedEngine

from magnitude.engine.protocol import Done, Failed, LoadAdapter, Message, ToService
from magnitude.errors import EngineNotReady, ModelNotFound
from magnitude.models.adapters import AdapterDescription, kv_hash
from magnitude.models.description import DecoderShape, ModelDescription
from magnitude.policy.strategy import Strategy
from magnitude.schedule.adapter_loading import load_adapters, plan_and_adapter
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.served_models import ServedModels
from magnitude.supervise.lifecycle import EngineLifecycle

SHAPE = DecoderShape(layers=1, kv_heads=1, head_dim=4, vocab_size=16, hidden_size=8, context_length=64)


class NoEngine:
    lifecycle = EngineLifecycle(load_deadline_s=1, step_deadline_s=1)
    pid = None
    heartbeat = None


def adapter(name: str, base: str = "tiny") -> AdapterDescription:
    return AdapterDescription(
        name=name,
        base=base,
        folder=f"/models/{base}/adapters/{name}",
        adapter_hash=f"hash of {name}",
        size_bytes=1,
        rank=8,
        modules=("self_attn.q_proj",),
        layers=1,
    )


def plan(*adapters: str, name: str = "tiny") -> ModelPlan:
    description = ModelDescription(
        name=name,
        kind="decoder",
        family="llama",
        folder="/nowhere",
        graph_file="lora.onnx",
        model_hash="hash of tiny",
        weight_bytes=1,
        decoder=SHAPE,
        lora_graph_file="lora.onnx",
        fallback_graph_file="fallback.onnx",
    )
    strategy = Strategy(threads=1, prefill_chunk=8, max_batch=1, slots=1, context_length=64, kv_type="float32")
    return ModelPlan(description, strategy, adapters=tuple(adapter(entry, name) for entry in adapters))


def all_but(*refused: str) -> ScriptedEngine:
    def answer(message: Message) -> ToService:
        assert isinstance(message, LoadAdapter)
        if message.name in refused:
            return Failed(request_id=message.request_id, code="adapter_invalid", message="its file is torn")
        return Done(request_id=message.request_id)

    return ScriptedEngine(answer)


def load(plan: ModelPlan, engine: ScriptedEngine, graph_file: str = "lora.onnx") -> None:
    asyncio.run(load_adapters(plan, graph_file, engine))


def test_every_adapter_is_loaded_with_its_hash() -> None:
    own, engine = plan("poet", "coder"), all_but()
    load(own, engine)
    sent = [message for message in engine.sent if isinstance(message, LoadAdapter)]
    assert [(m.model, m.name, m.adapter_hash) for m in sent] == [
        ("tiny", "poet", "hash of poet"),
        ("tiny", "coder", "hash of coder"),
    ]
    assert own.adapter_failures == {}


def test_an_adapter_that_fails_leaves_the_others_and_is_refused_with_the_reason() -> None:
    own = plan("poet", "coder")
    load(own, all_but("poet"))
    assert plan_and_adapter("tiny:coder", {"tiny": own}, default="tiny") == (own, "coder")
    assert plan_and_adapter("tiny", {"tiny": own}, default="tiny") == (own, "")
    with pytest.raises(EngineNotReady, match="its file is torn"):
        plan_and_adapter("tiny:poet", {"tiny": own}, default="tiny")
    load(own, all_but())
    assert plan_and_adapter("tiny:poet", {"tiny": own}, default="tiny") == (own, "poet")


def test_the_fallback_graph_takes_no_adapters() -> None:
    own, engine = plan("poet"), all_but()
    load(own, engine, "fallback.onnx")
    assert engine.sent == []
    with pytest.raises(EngineNotReady, match="fallback graph"):
        plan_and_adapter("poet", {"tiny": own}, default="tiny")


def test_aliases_may_name_an_adapter_and_may_hold_a_colon() -> None:
    served = ServedModels(
        [plan("poet"), plan(name="other")],
        aliases={"gpt-4": "tiny:poet", "llama3:8b": "other"},
        engine=NoEngine(),
        clock=lambda: 0.0,
    )
    for name in ("gpt-4", "tiny:poet", "poet", "default:poet", ":poet"):
        found = served.adapter(name)
        assert found is not None and found.full_name == "tiny:poet"
        assert served.plan(name).description.name == "tiny"
    assert served.adapter("tiny") is None
    assert served.plan("llama3:8b").description.name == "other"
    assert served.adapter("llama3:8b") is None
    for name in ("other:poet", "tiny:nobody"):
        with pytest.raises(ModelNotFound, match="has no adapter"):
            served.plan(name)
    with pytest.raises(ModelNotFound, match="is not served"):
        served.plan("nobody:poet")


def test_kv_of_an_adapter_is_in_a_scope_of_its_own() -> None:
    own = plan("poet", "coder")
    scopes = [own.scope("ann", own.adapter_hash(name)) for name in ("", "poet", "coder")]
    assert len(set(scopes)) == 3
    assert [scope.header_hash for scope in scopes] == [
        "hash of tiny",
        kv_hash("hash of tiny", "hash of poet"),
        kv_hash("hash of tiny", "hash of coder"),
    ]


def test_an_adapter_imported_anew_under_its_name_shares_no_kv_with_the_old_one() -> None:
    old, new = plan("poet"), plan("poet")
    new.adapters = (msgspec.structs.replace(new.adapters[0], adapter_hash="another"),)
    assert old.scope("ann", old.adapter_hash("poet")) != new.scope("ann", new.adapter_hash("poet"))
