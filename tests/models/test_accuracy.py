from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from magnitude.models.golden import Agreement
from magnitude.models.importing.accuracy import (
    FLOAT,
    INT8,
    KL_LOSS_NATS,
    PLANS,
    TOP1_LOSS,
    Plan,
    apply_plan,
    choose_plan,
)

EXACT = Agreement(tokens=500, top1=1.0, kl_nats=0.0)


def found(*kl_nats: float, top1: float = 0.99) -> dict[str, Agreement]:
    return {plan.name: Agreement(tokens=500, top1=top1, kl_nats=kl) for plan, kl in zip(PLANS, kl_nats, strict=True)}


def test_the_fastest_plan_within_the_tolerance_is_taken_and_the_figures_are_told() -> None:
    plan, reason = choose_plan(found(0.0012, 0.001, 0.0005), EXACT)
    assert plan is PLANS[0]
    assert "0.0012" in reason
    assert choose_plan(found(0.0043, 0.0027, 0.0007), EXACT)[0] is PLANS[1]


def test_the_tolerance_is_against_float_activations_and_not_against_nothing() -> None:
    coarse_weights = Agreement(tokens=500, top1=0.7, kl_nats=0.3)
    plan, _ = choose_plan(found(0.302, 0.3, 0.3, top1=0.7), coarse_weights)
    assert plan is PLANS[0]


@pytest.mark.parametrize(("top1", "kl_nats"), [(0.8, 0.001), (0.99, KL_LOSS_NATS * 2), (0.99, float("nan"))])
def test_when_no_plan_is_good_enough_the_most_exact_one_is_taken(top1: float, kl_nats: float) -> None:
    assert EXACT.top1 - TOP1_LOSS > 0.8
    plan, reason = choose_plan(found(kl_nats, kl_nats, kl_nats, top1=top1), EXACT)
    assert plan is PLANS[-1]
    assert "no faster plan" in reason


def test_a_plan_reaches_the_named_products_but_never_those_of_eight_bits(tmp_path: Path) -> None:
    def product(name: str, bits: int) -> onnx.NodeProto:
        return helper.make_node(
            "MatMulNBits", ["x", "w", "s"], [name], domain="com.microsoft", accuracy_level=4, bits=bits, K=32, N=1
        )

    nodes = [product("layers.0.qkv.product", 4), product("layers.0.gate_up.product", 4), product("layers.1.qkv", 8)]
    nodes.append(helper.make_node("Add", ["x", "x"], ["layers.0.qkv.sum"]))
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [value], [value])), str(tmp_path / "model.onnx"))
    apply_plan(tmp_path / "model.onnx", Plan(name="p", float_parts=(".qkv",)), tmp_path / "planned.onnx")
    planned = onnx.load(str(tmp_path / "planned.onnx"), load_external_data=False)
    levels = {
        node.output[0]: attribute.i
        for node in planned.graph.node
        for attribute in node.attribute
        if attribute.name == "accuracy_level"
    }
    assert levels == {"layers.0.qkv.product": FLOAT, "layers.0.gate_up.product": INT8, "layers.1.qkv": INT8}
