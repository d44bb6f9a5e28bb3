"""Which products of a decoder take their activations in INT8, and which in float.

MatMulNBits has an accuracy level: 4 quantises activations to INT8 for each product, 0 keeps them float. The level is
an attribute of each node, so plans can mix them and be compared on one set of weights.

ONNX Runtime has float kernels for 4-bit products only. An 8-bit product at level 0 is unpacked to float32 at each
step (70 times the time for one token), so plans leave 8-bit products, the output head among them, at INT8.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import onnx

from magnitude.models.golden import Agreement

INT8, FLOAT = 4, 0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """4-bit products whose output's name contains one of `float_parts` stay float; all others run at INT8.

    `wide_channels`: the graph multiplies the widest channels behind each norm in float (`graphs/linear.py`).
    """

    name: str
    wide_channels: bool = False
    float_parts: tuple[str, ...] = ()


# Cheapest first. Figures are for SmolLM2-135M in its Q4_1 blocks on x86-64 with AVX2: divergence from float in nats
# over 512 positions, and the rates of decode for one stream and for four, and of prefill, as shares of the first
# plan's (processor time of one thread, interleaved rounds). With none of them a row depends on its batch: the graph
# computes a lone token as two rows.
PLANS = (
    # 0.0043 nats; 1, 1, 1
    Plan(name="INT8 activations"),
    # 0.0020 nats; 0.92 to 1.0, 0.95 to 1.0, 1.0. (The way into the attention in float as well: 0.0020 nats.)
    Plan(name="INT8 activations, wide channels in float", wide_channels=True),
    # 0.0007 nats (what is left is the output head's); 0.31, 0.46, 1.0
    Plan(name="float activations where there is a kernel for them", float_parts=("layers.",)),
)

# Every product in float, also where ONNX Runtime has no kernel and unpacks the weights at each step. Far too slow to
# choose, and it uses none of the INT8 kernels: what a board falls back to whose INT8 kernels compute nonsense.
FALLBACK_GRAPH_FILE = "fallback.onnx"

# A plan may add this much divergence to what float activations have: a tenth of the least that quantising weights to
# 4 bits costs (0.03 to 0.3 nats).
KL_LOSS_NATS = 0.003
# Top tokens also flip where two are equally good, so theirs is a wide bound for gross faults (5 in 100 measured).
TOP1_LOSS = 0.10


def apply_plan(graph: Path, plan: Plan, target: Path) -> None:
    """Write `graph` with the plan's levels to `target` beside it; both use the same data file."""
    model = onnx.load(str(graph), load_external_data=False)
    for node in model.graph.node:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if "accuracy_level" not in attributes:
            continue
        in_float = any(part in name for part in plan.float_parts for name in node.output)
        attributes["accuracy_level"].i = FLOAT if in_float and attributes["bits"].i == 4 else INT8
    target.write_bytes(model.SerializeToString())


def write_fallback(graph: Path, target: Path) -> None:
    """Write `graph` with float activations everywhere to `target` beside it."""
    model = onnx.load(str(graph), load_external_data=False)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = FLOAT
    target.write_bytes(model.SerializeToString())


def choose_plan(found: dict[str, Agreement], floats: Agreement) -> tuple[Plan, str]:
    """The cheapest of `PLANS` within the tolerances, or the most exact one when none is, and why.

    `found` has each plan's agreement by its name, `floats` that of float activations everywhere, all against the
    same reference.
    """
    for plan in PLANS:
        if _acceptable(found[plan.name], floats):
            return plan, f"{plan.name}: the fastest within {KL_LOSS_NATS} nats. {_figures(found, floats)}"
    return PLANS[-1], f"{PLANS[-1].name}: no faster plan is within {KL_LOSS_NATS} nats. {_figures(found, floats)}"


def _acceptable(plan: Agreement, floats: Agreement) -> bool:
    # Written so that figures which are no numbers are not acceptable.
    return plan.top1 >= floats.top1 - TOP1_LOSS and plan.kl_nats <= floats.kl_nats + KL_LOSS_NATS


def _figures(found: dict[str, Agreement], floats: Agreement) -> str:
    rows = [f"{name} {row.kl_nats:.4f} nats, top-1 {row.top1:.3f}" for name, row in found.items()]
    return f"Over {floats.tokens} positions: {'; '.join(rows)}; float everywhere {floats.kl_nats:.4f} nats"
