"""Plans of models that are nowhere: for tests that never open their files."""

from __future__ import annotations

from typing import Any

from magnitude.models.description import DecoderShape, EncoderShape, KvType, ModelDescription
from magnitude.policy.provision import Provision
from magnitude.schedule.plan import ModelPlan, Stay

_made: list[ModelPlan] = []


def of_this_test(plan: ModelPlan) -> ModelPlan:
    """The plan, whose KV memory (two descriptors) is given back at the end of the test."""
    _made.append(plan)
    return plan


def close_plans() -> None:
    for plan in _made:
        if plan.kv is not None:
            plan.kv.close()
    _made.clear()


def decoder_plan(
    name: str = "m",
    *,
    head_dim: int = 16,
    vocab_size: int = 16,
    slots: int = 2,
    context: int = 64,
    stay: Stay = "pinned",
    share_prefixes: bool = False,
    model_hash: str = "0",
    weight_bytes: int = 1,
    variant_of: str = "",
    kv_type: KvType = "float32",
    **provision: Any,
) -> ModelPlan:
    """A decoder of one layer with one KV head. `provision` are further settings of it."""
    shape = DecoderShape(
        layers=1,
        kv_heads=1,
        head_dim=head_dim,
        vocab_size=vocab_size,
        hidden_size=8,
        context_length=1024,
        kv_type=kv_type,
    )
    description = ModelDescription(
        name=name,
        kind="decoder",
        family="llama",
        folder="/nowhere",
        graph_file="model.onnx",
        model_hash=model_hash,
        weight_bytes=weight_bytes,
        decoder=shape,
        variant_of=variant_of,
    )
    settings = {"max_batch": slots, "kv_type": kv_type} | provision
    planned = Provision(threads=1, prefill_chunk=8, slots=slots, context_length=context, **settings)
    return of_this_test(ModelPlan(description, planned, stay=stay, share_prefixes=share_prefixes))


def encoder_plan(name: str = "e", *, stay: Stay = "pinned", weight_bytes: int = 1, variant_of: str = "") -> ModelPlan:
    """An embedder with vectors of one number."""
    description = ModelDescription(
        name=name,
        kind="embedder",
        family="bert",
        folder="/nowhere",
        graph_file="model.onnx",
        model_hash="0",
        weight_bytes=weight_bytes,
        encoder=EncoderShape(width=1, max_tokens=64),
        variant_of=variant_of,
    )
    provision = Provision(threads=1, prefill_chunk=8, slots=0, context_length=0, kv_type=None)
    return ModelPlan(description, provision, stay=stay)


def token_bytes(plan: ModelPlan) -> int:
    """KV of one position."""
    assert plan.description.decoder is not None
    return plan.description.decoder.kv_bytes_per_token()
