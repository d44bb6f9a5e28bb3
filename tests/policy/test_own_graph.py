"""Which graph a model is loaded with."""

from __future__ import annotations

import msgspec
import pytest

from magnitude.models.description import KERNEL_GRAPH_FILE, DecoderShape, EncoderShape, ModelDescription
from magnitude.policy.own_graph import GraphWish, OwnGraph, own_graph

SHAPE = DecoderShape(layers=2, kv_heads=1, head_dim=8, vocab_size=32, hidden_size=16, context_length=2048)
CHAT = ModelDescription(
    name="chat",
    kind="decoder",
    family="llama",
    folder="/nowhere",
    graph_file="model.onnx",
    model_hash="0",
    weight_bytes=1,
    decoder=SHAPE,
    fallback_graph_file="fallback.onnx",
    lora_graph_file="lora.onnx",
    graphs=("fused.onnx",),
    kernel_graphs=(KERNEL_GRAPH_FILE,),
)


@pytest.mark.parametrize("no_kernels", ["", "there are none"])
def test_where_it_is_measured_every_other_graph_may_be_tried_beside_the_serving_graph(no_kernels: str) -> None:
    assert own_graph(CHAT, "measured", no_kernels) == OwnGraph(CHAT)


def test_with_the_serving_graph_alone_no_kernel_plan_is_tried() -> None:
    found = own_graph(CHAT, "serving", "")
    assert found == OwnGraph(msgspec.structs.replace(CHAT, kernel_graphs=()))


def test_by_its_kernel_plan_alone_a_model_has_no_other_graph_beside_it_and_remembers_what_stands_in() -> None:
    found = own_graph(CHAT, "kernels", "")
    assert found.refused == ""
    assert found.model.graph_file == KERNEL_GRAPH_FILE
    assert (found.model.graphs, found.model.kernel_graphs) == ((), ())
    assert found.model.serving_graph_file == "model.onnx"
    assert found.model.fallback_graph_file == "fallback.onnx"


@pytest.mark.parametrize(
    ("changes", "no_kernels", "reason"),
    [
        ({}, "there are none", "there are none"),
        ({"kernel_graphs": ()}, "", "import it again"),
        ({"graph_file": "lora.onnx", "graphs": (), "kernel_graphs": ()}, "", "adapters"),
    ],
)
def test_where_the_plan_cannot_be_the_model_stays_as_it_is_and_says_why(
    changes: dict[str, object], no_kernels: str, reason: str
) -> None:
    model = msgspec.structs.replace(CHAT, **changes)
    found = own_graph(model, "kernels", no_kernels)
    assert found.model == model
    assert reason in found.refused


@pytest.mark.parametrize("wish", ["auto", "serving", "kernels"])
def test_an_encoder_has_nothing_to_choose_and_nothing_to_say(wish: GraphWish) -> None:
    encoder = msgspec.structs.replace(
        CHAT, kind="embedder", decoder=None, encoder=EncoderShape(width=8, max_tokens=64), kernel_graphs=()
    )
    assert own_graph(encoder, wish, "there are none") == OwnGraph(encoder)
