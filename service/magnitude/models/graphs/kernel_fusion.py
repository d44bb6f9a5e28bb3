"""What stands around the products of a kernel plan, taken into them: norms, gates, the residual stream.

    residual + branch → norm → product → gate · up → product

has five nodes of ONNX Runtime's around the two products, each of them a call, a pass over memory on one thread, and
memory of its own. `ai.magnitude.Product` does all of it in its own call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from onnx import helper

from magnitude.models.description import KERNEL_DOMAIN

PRODUCT = "Product"
# Places among the inputs of a Product (`kernels/ops/product_op.cc`).
GAIN, BIAS, RESIDUAL = 4, 5, 6

_NORM, _ADD_AND_NORM, _SILU = "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "QuickGelu"
# Neither changes a row nor mixes rows, so that a norm can come behind it as well as before.
_MOVES_ROWS = ("Gather", "Reshape")


def give_input(product: Any, place: int, name: str) -> None:
    """Let `product` read `name` as its input number `place`; inputs between that it does not have stay empty."""
    while len(product.input) <= place:
        product.input.append("")
    product.input[place] = name


def fuse_products(nodes: Sequence[Any], outputs: Iterable[str]) -> list[Any]:
    """The `nodes` of a graph with these `outputs`, in order, without those that their products take over. Products
    are changed where they are. Each node is read by another one, or gives an output."""
    fusing = _Fusing(nodes, frozenset(outputs))
    for node in nodes:
        if node.op_type == "Mul":
            fusing.take_gate(node)
    for node in nodes:
        if node.op_type in (_NORM, _ADD_AND_NORM):
            fusing.take_norm(node)
    return [node for node in nodes if id(node) not in fusing.gone]


class _Fusing:
    """Who gives and reads each value, as it was before anything was taken over; no step asks for a value that another
    one has made."""

    def __init__(self, nodes: Sequence[Any], outputs: frozenset[str]) -> None:
        self._outputs = outputs
        self._producer = {name: node for node in nodes for name in node.output if name}
        self._readers: dict[str, list[Any]] = {}
        for node in nodes:
            for name in dict.fromkeys(node.input):
                if name:
                    self._readers.setdefault(name, []).append(node)
        self.gone: set[int] = set()

    def take_gate(self, multiply: Any) -> None:
        """Split, SiLU and multiplication behind a product of gates and ups."""
        silu = self._producer.get(multiply.input[0])
        if silu is None or silu.op_type != _SILU or _attribute(silu, "alpha", 1.702) != 1.0:
            return
        split = self._producer.get(silu.input[0])
        if split is None or split.op_type != "Split" or list(split.output) != [silu.input[0], multiply.input[1]]:
            return
        product = self._producer.get(split.input[0])
        between = (*split.output, *silu.output)
        if product is None or not _is_product(product) or not self._only(split.input[0], split):
            return
        if any(name in self._outputs for name in between) or len(self._readers[multiply.input[1]]) > 1:
            return
        product.attribute.append(helper.make_attribute("gated", 1))
        product.output[0] = multiply.output[0]
        self.gone |= {id(node) for node in (split, silu, multiply)}

    def take_norm(self, norm: Any) -> None:
        """A norm in front of products, and the addition to the residual stream in front of that."""
        normed = norm.output[0]
        products = self._products_behind(normed)
        if not products:
            return
        stream, gain = norm.input[0], norm.input[-1]
        if norm.op_type == _ADD_AND_NORM:
            summed = norm.output[3] if len(norm.output) > 3 and norm.output[3] else f"{normed}.sum"
            branch = self._producer.get(norm.input[1])
            if branch is None or not _is_product(branch) or not self._only(norm.input[1], norm):
                return
            give_input(branch, RESIDUAL, stream)
            stream = branch.output[0] = summed
        epsilon = _attribute(norm, "epsilon", 1e-5)
        for reader in self._readers[normed]:
            for place, name in enumerate(reader.input):
                if name == normed:
                    reader.input[place] = stream
        for product in products:
            give_input(product, GAIN, gain)
            product.attribute.append(helper.make_attribute("epsilon", epsilon))
        self.gone.add(id(norm))

    def _products_behind(self, value: str) -> list[Any]:
        """All that reads `value`, directly or a selection of its rows; empty where anything else reads it."""
        found = []
        if value in self._outputs:
            return []
        for reader in self._readers.get(value, []):
            if _is_product(reader) and reader.input[0] == value:
                found.append(reader)
            elif reader.op_type in _MOVES_ROWS and reader.input[0] == value:
                behind = self._products_behind(reader.output[0])
                if not behind:
                    return []
                found += behind
            else:
                return []
        return found

    def _only(self, value: str, reader: Any) -> bool:
        return value not in self._outputs and [id(node) for node in self._readers[value]] == [id(reader)]


def _is_product(node: Any) -> bool:
    return bool(node.domain == KERNEL_DOMAIN and node.op_type == PRODUCT)


def _attribute(node: Any, name: str, otherwise: float) -> float:
    for attribute in node.attribute:
        if attribute.name == name:
            return float(attribute.f)
    return otherwise
