"""The kernel plan: the serving graph with our own operators for its products, over the same data file.

A product of the serving graph is up to five nodes (`linear.py`): MatMulNBits, block sums of its input, a float
product of these with the correction for minima, and an addition; where channels are wide, a selection of them. In the
kernel plan it is one node, `ai.magnitude.Product`, that reads the same codes, scales and correction:

- Minima are part of the operator, which knows the sums of the rounded activations.
- Wide channels are read where they are, and their weights are the rest of the correction. (Left to the INT8 product,
  with norms as they were trained, SmolLM2-135M is 0.0031 nats from float activations instead of 0.0017.)
- A lone token has no spare row: a row's bits do not depend on what is computed with it.

Norms, gates and the residual stream go into the products as well (`kernel_fusion.py`).

Where the KV cache is float32 the attention is ours as well: `ai.magnitude.Attention` turns queries and keys, writes
what is new to the same cache that GroupQueryAttention has, in place, and attends to it on the kernels' own threads.

The codes of a product may be given to a session in packed form (`KERNEL_PRODUCTS` in the graph's metadata says where
they and what goes with them lie), so that sessions share one mapped copy.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from magnitude.models.description import KERNEL_DOMAIN, KERNEL_GRAPH_FILE, KERNEL_PRODUCTS
from magnitude.models.graphs.blocks import BLOCK
from magnitude.models.graphs.graph import read_model, write_model
from magnitude.models.graphs.kernel_bytes import ATTENTION, keep_in_bytes
from magnitude.models.graphs.kernel_fusion import BIAS, PRODUCT, fuse_products, give_input
from magnitude.models.graphs.lora import SHRUNK_CHANNELS

__all__ = ["KERNEL_GRAPH_FILE", "KERNEL_WORDS", "write_kernel_plan"]

KERNEL_WORDS = "products and attention by our own kernels"

# Products with weights that are left when all that can be taken over were: such a graph is no kernel plan, since what
# is left would be computed on one thread.
_OTHER_PRODUCTS = ("MatMul", "MatMulNBits", "FusedMatMul", "Gemm")

# Of a GroupQueryAttention that turns keys by tables and has a cache without scales (`decoder_graph.py`).
_GQA_INPUTS = 9


def write_kernel_plan(serving: Path, target: Path, *, over_bytes: bool = False) -> bool:
    """Write the kernel plan of the graph `serving` to `target` beside it; `over_bytes`: with a KV cache of the type
    `int8_per_token` in the place of float32. False, with nothing written, where it has products that are none for the
    kernels (float weights, blocks of another size, 8 bits with minima), or no cache of float32."""
    model = read_model(serving)
    made = _Rewriter(model)
    if not made.rewrite() or (over_bytes and not keep_in_bytes(model.graph)):
        return False
    write_model(model, target)
    return True


class _Rewriter:
    def __init__(self, model: Any) -> None:
        self._model = model
        self._graph = model.graph
        self._producer = {name: node for node in self._graph.node for name in node.output if name}
        self._readers: dict[str, list[Any]] = {}
        for node in self._graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._tensors = {tensor.name: tensor for tensor in self._graph.initializer}
        self._instead: dict[str, list[Any]] = {}  # new nodes by the first output of the one that they stand for
        self._same: dict[str, str] = {}  # values that are another one under a second name
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        self._shrunk: dict[str, list[int]] = json.loads(metadata.get(SHRUNK_CHANNELS, "{}"))
        self._packable: dict[str, dict[str, Any]] = {}
        self._begin: list[Any] = []  # what stands in front of all layers

    def rewrite(self) -> bool:
        self._drop_spare_rows()
        attentions = [node for node in self._graph.node if node.op_type == "GroupQueryAttention"]
        if ours := [node for node in attentions if self._is_over_floats(node)]:
            self._place_rows()
            for node in ours:
                self._attend(node)
        for node in list(self._graph.node):
            if node.op_type == "MatMulNBits" and not self._take_over(node):
                return False
        self._put()
        left = [node for node in self._graph.node if node.op_type in _OTHER_PRODUCTS]
        if left or not any(node.domain == KERNEL_DOMAIN for node in self._graph.node):
            return False
        self._model.opset_import.append(helper.make_opsetid(KERNEL_DOMAIN, 1))
        kept = {entry.key: entry.value for entry in self._model.metadata_props}
        kept[KERNEL_PRODUCTS] = json.dumps(self._packable)
        helper.set_model_props(self._model, kept)
        return True

    def _drop_spare_rows(self) -> None:
        """The nodes that add a row to a lone token's, and those that take it away again (`decoder_graph.py`)."""
        for node in self._graph.node:
            widened = node.op_type == "Expand" and node.input[1] == "stream_shape"
            if widened or (node.op_type == "Slice" and node.input[2] == "batch"):
                self._same[node.output[0]] = node.input[0]
                self._instead[node.output[0]] = []

    def _take_over(self, node: Any) -> bool:
        """Put one operator in the place of a blocked product and of what is added to it."""
        sizes = {attribute.name: attribute.i for attribute in node.attribute}
        bits, n, k = sizes["bits"], sizes["N"], sizes["K"]
        blocks = k // BLOCK
        if bits not in (4, 8) or sizes["block_size"] != BLOCK or k % BLOCK or (len(node.input) > 3 and node.input[3]):
            return False
        x, codes, scale = node.input[:3]
        inputs = [x, codes, scale]
        value = node.output[0]
        added, correction, minima = self._correction(value)
        attributes: dict[str, Any] = {"n": n}
        if added is not None:
            if minima and bits != 4:
                return False
            inputs.append(correction)
            attributes["minima"] = int(minima)
            if wide := self._shrunk.get(x):
                attributes["wide"] = wide
            value = added.output[0]
            self._instead[value] = []
        bias = node.input[5] if len(node.input) > 5 else ""
        new = helper.make_node(PRODUCT, inputs, [value], name=value, domain=KERNEL_DOMAIN, **attributes)
        if bias:
            give_input(new, BIAS, bias)
        self._instead[node.output[0]] = [new]
        self._note_places(inputs[1 : 4 if minima else 3], n, blocks, bits)
        return True

    def _correction(self, value: str) -> tuple[Any, str, bool]:
        """The addition behind a product, the tensor whose part is added, and whether its first rows are minima; None
        where nothing is added but what belongs to the graph."""
        for reader in self._readers.get(value, []):
            if reader.op_type != "Add":
                continue
            part = self._producer.get(reader.input[1])
            if part is not None and part.op_type == "MatMul" and part.output[0].endswith(".corrected"):
                beside = self._producer[part.input[0]]
                self._instead[part.output[0]] = []
                # A Gather takes wide channels and nothing else; sums and selections have the minima's sums first.
                return reader, part.input[1], beside.op_type != "Gather"
        return None, "", False

    def _is_over_floats(self, node: Any) -> bool:
        """Whether the cache has no scales and no halves, and keys are turned by tables, as in all of our graphs."""
        kinds = {value.name: value.type.tensor_type.elem_type for value in self._graph.input}
        return kinds.get(node.input[3]) == TensorProto.FLOAT and len(node.input) == _GQA_INPUTS

    def _place_rows(self) -> None:
        """`rows.slots` and `rows.positions`, `[batch, tokens]`: where in the cache the new tokens are, once for all
        layers. A row of the batch is a slot; its positions end where its mask does."""
        self._graph.initializer.extend(
            [
                numpy_helper.from_array(np.array(value, np.int64), name)
                for name, value in (("rows.zero", 0), ("rows.one", 1), ("rows.axis", [1]))
            ]
        )
        self._begin = [
            helper.make_node("Shape", ["input_ids"], ["rows.shape"]),
            helper.make_node("Gather", ["rows.shape", "rows.zero"], ["rows.batch"]),
            helper.make_node("Gather", ["rows.shape", "rows.one"], ["rows.tokens"]),
            helper.make_node("Range", ["rows.zero", "rows.batch", "rows.one"], ["rows.each"]),
            helper.make_node("Unsqueeze", ["rows.each", "rows.axis"], ["rows.column"]),
            helper.make_node("Expand", ["rows.column", "rows.shape"], ["rows.slots"]),
            helper.make_node("ReduceSum", ["attention_mask", "rows.axis"], ["rows.ends"], keepdims=1),
            helper.make_node("Sub", ["rows.ends", "rows.tokens"], ["rows.pasts"]),
            helper.make_node("Range", ["rows.zero", "rows.tokens", "rows.one"], ["rows.further"]),
            helper.make_node("Add", ["rows.pasts", "rows.further"], ["rows.positions"]),
        ]
        for node in self._begin:
            node.name = node.output[0]

    def _attend(self, node: Any) -> None:
        """Our attention in the place of a GroupQueryAttention."""
        sizes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        query, key, value, past_key, past_value, _, _, cosines, sines = node.input
        attributes = {"heads": sizes["num_heads"], "kv_heads": sizes["kv_num_heads"]}
        if sizes.get("local_window_size", -1) > 0:
            attributes["window"] = sizes["local_window_size"]
        if sizes.get("scale", 0.0) > 0:
            attributes["scale"] = sizes["scale"]
        inputs = [query, key, value, "rows.slots", "rows.positions", past_key, past_value, cosines, sines]
        new = helper.make_node(
            ATTENTION, inputs, list(node.output), name=node.output[0], domain=KERNEL_DOMAIN, **attributes
        )
        self._instead[node.output[0]] = [new]

    def _note_places(self, names: list[str], n: int, blocks: int, bits: int) -> None:
        """Where a product's tensors lie in the data file, by the name of its codes; small ones are in the graph."""
        spans = []
        for name in names:
            place = {entry.key: entry.value for entry in self._tensors[name].external_data}
            if not place:
                return
            spans.append([int(place["offset"]), int(place["length"])])
        self._packable[names[0]] = {"bits": bits, "n": n, "blocks": blocks, "spans": spans}

    def _put(self) -> None:
        """The new nodes in the places of the old ones, without what nobody reads any more."""
        nodes = [new for node in self._graph.node for new in self._instead.get(_first(node), [node])]
        nodes[:0] = self._begin
        for node in nodes:
            for index, name in enumerate(node.input):
                node.input[index] = self._same.get(name, name)
        outputs = [output.name for output in self._graph.output]
        wanted = set(outputs)
        kept = []
        for node in reversed(nodes):
            if wanted.intersection(node.output):
                kept.append(node)
                wanted.update(node.input)
        kept = fuse_products(kept[::-1], outputs)
        del self._graph.node[:]
        self._graph.node.extend(kept)
        self._drop_unread()

    def _drop_unread(self) -> None:
        read = {name for node in self._graph.node for name in node.input}
        kept = [tensor for tensor in self._graph.initializer if tensor.name in read]
        del self._graph.initializer[:]
        self._graph.initializer.extend(kept)


def _first(node: Any) -> str:
    return next(str(name) for name in node.output if name)
