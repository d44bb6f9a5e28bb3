"""A second graph over the same weights, with low-rank adapters as inputs.

A LoRA adapter adds `(x @ A) @ B` to linear layers (Hu et al., LoRA, eq. 3; its scale is folded into B when the
adapter is imported). Each product of the decoder gets two inputs, `lora.N.PRODUCT.a` `[in, rank]` and
`lora.N.PRODUCT.b` `[rank, out]`, float32, with a free rank: rank 0 adds nothing, and the base model through this
graph gives the bits of the plain one. Adapters are ordinary inputs because ONNX Runtime's own adapter objects have
no effect on a run with bound inputs.

Where q, k and v (or gate and up) are one product, they share A's columns and B is block-diagonal: three nodes a
product instead of up to ten. Up to rank 16 that was as fast as a pair for each layer or faster, at rank 64 a tenth
slower (decode of one and four rows, SmolLM2-135M, two threads); zeros in B make adapters half as large again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from magnitude.errors import ImportFailed

LORA_GRAPH_FILE = "lora.onnx"
PREFIX = "lora."

# A graph may compute a product on an input some of whose channels were made smaller by a power of two, its weights
# making up for it. It then says so in its metadata: the channels by the input's name, and the factor. The rows of A
# that meet these channels must be as much larger; the LoRA graph's own metadata names them by product.
SHRUNK_CHANNELS, SHRUNK_BY = "shrunk_channels", "shrunk_by"
LORA_SHRUNK = "lora_shrunk_channels"

# Each product's name in inputs, the value that a decoder graph calls it, and the layers that are stacked in it.
PRODUCTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "qkv": ("qkv", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    "q": ("q", ("self_attn.q_proj",)),
    "k": ("k", ("self_attn.k_proj",)),
    "v": ("v", ("self_attn.v_proj",)),
    "o": ("attention.out", ("self_attn.o_proj",)),
    "gate_up": ("gate_up", ("mlp.gate_proj", "mlp.up_proj")),
    "gate": ("gate", ("mlp.gate_proj",)),
    "up": ("up", ("mlp.up_proj",)),
    "down": ("mlp.out", ("mlp.down_proj",)),
}
_MATRIX_PRODUCTS = ("MatMulNBits", "MatMul")


def write_lora(graph: Path, target: Path, layers: int) -> None:
    """Write the decoder `graph` of `layers` layers with adapter inputs to `target` beside it; both use one data file.

    Raises `ImportFailed` where a linear layer of the graph is not found: the graph was not built here.
    """
    model = onnx.load(str(graph), load_external_data=False)
    shrunk: dict[str, list[int]] = json.loads(_metadata(model).get(SHRUNK_CHANNELS, "{}"))
    made = _Rewriter(model.graph)
    for layer in range(layers):
        missing = {module for _, modules in PRODUCTS.values() for module in modules}
        for product, (value, modules) in PRODUCTS.items():
            if made.adapt(f"layers.{layer}.{value}", f"{PREFIX}{layer}.{product}"):
                missing -= set(modules)
        if missing:
            raise ImportFailed(
                f"{graph.name}: layer {layer} has no product for {', '.join(sorted(missing))}, "
                "so adapters cannot be added",
                hint="Import the model from its weights (GGUF or safetensors) with --lora",
            )
    made.finish()
    channels = {name: shrunk[value] for name, value in made.inputs.items() if value in shrunk}
    model.metadata_props.add(key=LORA_SHRUNK, value=json.dumps(channels))
    target.write_bytes(model.SerializeToString())


def shrunk_channels(graph: Path) -> tuple[dict[str, list[int]], float]:
    """Channels by product (`lora.N.qkv`) whose rows of A must be larger, and by what factor."""
    found = _metadata(onnx.load(str(graph), load_external_data=False))
    return json.loads(found.get(LORA_SHRUNK, "{}")), float(found.get(SHRUNK_BY, "1"))


def _metadata(model: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in model.metadata_props}


class _Rewriter:
    """Adds nodes behind products of one graph."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._producer = {name: node for node in graph.node for name in node.output if name}
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._behind: dict[str, list[Any]] = {}  # new nodes by the value that they follow
        self.inputs: dict[str, str] = {}  # what each adapted product reads, by its name in inputs

    def adapt(self, value: str, name: str) -> bool:
        """Add `(x @ name.a) @ name.b` to `value`; False where the graph has no such product."""
        node = self._product(value)
        if node is None:
            return False
        columns, rows = self._shape(node)
        self.inputs[name] = node.input[0]
        a, b, base, inner, delta = f"{name}.a", f"{name}.b", f"{value}.base", f"{value}.inner", f"{value}.delta"
        for side, shape in ((a, [columns, f"{a}.rank"]), (b, [f"{b}.rank", rows])):
            self._graph.input.append(helper.make_tensor_value_info(side, TensorProto.FLOAT, shape))
        last = self._producer[value]
        last.output[list(last.output).index(value)] = base
        self._behind[base] = [
            helper.make_node("MatMul", [node.input[0], a], [inner], name=inner),
            helper.make_node("MatMul", [inner, b], [delta], name=delta),
            helper.make_node("Add", [base, delta], [value], name=f"{value}.adapted"),
        ]
        return True

    def _product(self, value: str) -> Any:
        """The matrix product that `value` is made by, behind additions of minima and biases; None without one."""
        node = self._producer.get(value)
        while node is not None and node.op_type == "Add":
            node = self._producer.get(node.input[0])
        return node if node is not None and node.op_type in _MATRIX_PRODUCTS else None

    def _shape(self, node: Any) -> tuple[int, int]:
        if node.op_type == "MatMul":
            columns, rows = self._tensors[node.input[1]].dims
            return columns, rows
        sizes = {attribute.name: attribute.i for attribute in node.attribute}
        return sizes["K"], sizes["N"]

    def finish(self) -> None:
        """Put the new nodes where they belong in the order of computation."""
        nodes: list[Any] = []
        for node in self._graph.node:
            nodes.append(node)
            for name in node.output:
                nodes += self._behind.pop(name, [])
        del self._graph.node[:]
        self._graph.node.extend(nodes)
