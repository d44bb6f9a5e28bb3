"""Which products of a graph take their activations in INT8, and which in float.

MatMulNBits has an accuracy level: 4 quantises activations to INT8 for each product, 0 keeps them float. The level is
an attribute of each node, so plans can mix them and be compared on one set of weights.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import onnx

INT8, FLOAT = 4, 0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`level` for every product but those whose output's name contains one of `float_parts`, which stay float."""

    name: str
    level: int
    float_parts: tuple[str, ...] = ()


ALL_FLOAT = Plan(name="float activations", level=FLOAT)
ALL_INT8 = Plan(name="INT8 activations", level=INT8)
# What attention puts out has a few large channels among small ones, which one INT8 scale a block serves badly. It is
# the smallest product of a layer: in float it costs less than could be measured (decode 26.5 against 27.5 tokens/s
# and prefill 130 against 129 on two busy x86 cores), and takes a third off the divergence (SmolLM2-135M: 0.0081 to
# 0.0056 nats on first tokens of chat answers). All products in float cost nine tenths of the decode rate there.
INT8_BUT_ATTENTION_OUTPUT = Plan(
    name="INT8 activations, float behind the attention", level=INT8, float_parts=(".attention.out",)
)


def apply_plan(graph: Path, plan: Plan, target: Path) -> None:
    """Write `graph` with the plan's levels to `target` beside it; both use the same data file."""
    model = onnx.load(str(graph), load_external_data=False)
    for node in model.graph.node:
        in_float = any(part in name for part in plan.float_parts for name in node.output)
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = FLOAT if in_float else plan.level
    target.write_bytes(model.SerializeToString())
