"""Fusion plans: other graphs of a decoder over the same data file.

The serving graph multiplies stacked matrices (q, k and v; gate and up) in one product each. Rows of a stacked matrix
lie one after the other, codes as well as scales, so that a graph with separate products names parts of the same bytes
as its weights: a plan costs its nodes on the disk, and no weights. Whether one is faster may differ by core, rows and
threads, so it is found out on the board.

What is added to a product for minima and wide channels stays one product: its weights lie the other way round, and
so each element of the result is computed from the same numbers in the same order as in the serving graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from onnx import TensorProto, helper, numpy_helper

from magnitude.models.graphs.graph import read_model, write_model

_QKV, _GATE_UP = "qkv", "gate_up"


class FusionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`separate` names the stacked products that the plan takes apart."""

    file: str
    words: str
    separate: tuple[str, ...]


# The serving graph itself is the plan with both stacked. Plain operators are no plan: ONNX Runtime 1.32 fuses those
# of the activation function again when it loads a graph, those of a norm cost an operator more and are not equal to
# the bit, and without MatMulNBits and GroupQueryAttention there are neither blocks of 4 bits nor KV in place.
FUSION_PLANS = (
    FusionPlan(file="separate.onnx", words="q, k and v apart, gate and up apart", separate=(_QKV, _GATE_UP)),
    FusionPlan(file="separate-mlp.onnx", words="q, k and v in one product, gate and up apart", separate=(_GATE_UP,)),
)


def write_plan(serving: Path, plan: FusionPlan, target: Path) -> bool:
    """Write `plan`'s form of the graph `serving` to `target` beside it. False, with nothing written, where the graph
    has not all the products that the plan takes apart: float weights, or matrices that were never stacked."""
    model = read_model(serving)
    taken = _Separator(model.graph)
    found: set[str] = set()
    for node in list(model.graph.node):
        if node.op_type == "GroupQueryAttention" and _QKV in plan.separate and taken.separate_attention(node):
            found.add(_QKV)
        elif node.op_type == "Split" and _GATE_UP in plan.separate and taken.separate_split(node):
            found.add(_GATE_UP)
    if found != set(plan.separate):
        return False
    taken.finish()
    write_model(model, target)
    return True


class _Separator:
    """Takes stacked products of one graph apart."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._producer = {name: node for node in graph.node for name in node.output if name}
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._instead: dict[str, list[Any]] = {}  # new nodes by the first output of the one that they stand for

    def separate_attention(self, node: Any) -> bool:
        """Give an attention with packed q, k and v three inputs of their own."""
        if node.input[1]:
            return False
        rows = self._producer[node.input[0]]  # without the spare row of a lone token
        value = rows.input[0]
        product = self._product(value)
        if rows.op_type != "Slice" or product is None:
            return False
        sizes = {attribute.name: attribute.i for attribute in node.attribute}
        heads, kv_heads = sizes["num_heads"], sizes["kv_num_heads"]
        width = _attribute(product, "N") // (heads + 2 * kv_heads)
        at = value.removesuffix(_QKV)
        names = [f"{at}{letter}" for letter in "qkv"]
        self._separate(value, product, names, [heads * width, kv_heads * width, kv_heads * width])
        cut = [f"{name}.rows" for name in names]
        self._instead[rows.output[0]] = [
            helper.make_node("Slice", [name, *rows.input[1:]], [out], name=out)
            for name, out in zip(names, cut, strict=True)
        ]
        node.input[0], node.input[1], node.input[2] = cut
        return True

    def separate_split(self, node: Any) -> bool:
        """Compute what an even split of a product would give by a product each."""
        value = node.input[0]
        product = self._product(value)
        if product is None:
            return False
        names = list(node.output)
        self._separate(value, product, names, [_attribute(product, "N") // len(names)] * len(names))
        self._instead[node.output[0]] = []
        return True

    def _product(self, value: str) -> Any:
        """The blocked product that makes `value`, alone or with a correction added to it; None for any other."""
        node = self._producer.get(value)
        if node is not None and node.op_type == "Add":
            node = self._producer.get(node.input[0])
        return node if node is not None and node.op_type == "MatMulNBits" else None

    def _separate(self, value: str, product: Any, names: Sequence[str], sizes: Sequence[int]) -> None:
        last = self._producer[value]
        added = last.input[1] if last is not product else None
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        self._instead[product.output[0]] = [
            self._part(product, name if added is None else f"{name}.product", name, start, size)
            for name, start, size in zip(names, starts, sizes, strict=True)
        ]
        if added is None:
            return
        parts = [f"{name}.corrected" for name in names]
        lengths = numpy_helper.from_array(np.array(sizes, np.int64), f"{value}.parts")
        self._graph.initializer.append(lengths)
        self._instead[last.output[0]] = [
            helper.make_node("Split", [added, lengths.name], parts, name=f"{value}.parts", axis=-1),
            *(
                helper.make_node("Add", [f"{name}.product", part], [name], name=name)
                for name, part in zip(names, parts, strict=True)
            ),
        ]

    def _part(self, product: Any, out: str, name: str, start: int, size: int) -> Any:
        """The rows of a blocked product's matrix from `start` on, as a product of their own."""
        inputs = [product.input[0]]
        for stored in product.input[1:]:
            inputs.append(self._rows(stored, f"{name}{stored[stored.rindex('.') :]}", start, size) if stored else "")
        node = helper.make_node("MatMulNBits", inputs, [out], name=out, domain=product.domain)
        node.attribute.extend(product.attribute)
        for attribute in node.attribute:
            if attribute.name == "N":
                attribute.i = size
        return node

    def _rows(self, stored: str, name: str, start: int, size: int) -> str:
        """A tensor over `size` rows of another one's bytes."""
        whole = self._tensors[stored]
        place = {entry.key: entry.value for entry in whole.external_data}
        if not place:
            part = numpy_helper.from_array(numpy_helper.to_array(whole)[start : start + size], name)
        else:
            row_bytes = int(place["length"]) // whole.dims[0]
            part = TensorProto(name=name, data_type=whole.data_type, dims=[size, *whole.dims[1:]])
            part.data_location = TensorProto.EXTERNAL
            place |= {"offset": str(int(place["offset"]) + start * row_bytes), "length": str(size * row_bytes)}
            for key, text in place.items():
                part.external_data.add(key=key, value=text)
        self._graph.initializer.append(part)
        return name

    def finish(self) -> None:
        """Put the new nodes in the places of the old ones, and drop the tensors that nobody reads any more."""
        nodes = [new for node in self._graph.node for new in self._instead.get(node.output[0], [node])]
        del self._graph.node[:]
        self._graph.node.extend(nodes)
        read = {name for node in self._graph.node for name in node.input}
        kept = [tensor for tensor in self._graph.initializer if tensor.name in read]
        del self._graph.initializer[:]
        self._graph.initializer.extend(kept)


def _attribute(node: Any, name: str) -> int:
    return next(int(attribute.i) for attribute in node.attribute if attribute.name == name)
