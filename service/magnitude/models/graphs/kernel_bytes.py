"""A kernel plan over a cache of bytes: keys and values as INT8, with a scale for each position and head.

The scales are found when a key or value is written (`kernels/src/cache_bytes.h`), so nothing is calibrated. Of each
position a head takes `head_dim + 4` bytes for its key, and as many for its value, in the place of `4 * head_dim`.
"""

from __future__ import annotations

from typing import Any

from onnx import TensorProto, helper

from magnitude.models.description import KERNEL_DOMAIN

ATTENTION, OVER_BYTES = "Attention", "AttentionOverBytes"
# Places of an Attention's inputs (`kernels/ops/attention_op.cc`).
_PAST_KEY, _PAST_VALUE, _TABLES = 5, 6, 7


def keep_in_bytes(graph: Any) -> bool:
    """Let all attention of the kernel plan `graph`, over float32, go over bytes. False, with nothing changed, where
    it has attention of another kind or none."""
    ours = [node for node in graph.node if node.domain == KERNEL_DOMAIN and node.op_type == ATTENTION]
    if not ours or any(node.op_type == "GroupQueryAttention" for node in graph.node):
        return False
    values = {value.name: value for value in (*graph.input, *graph.output)}
    for node in ours:
        caches = [*node.input[_PAST_KEY:_TABLES], *node.output[1:]]
        for name in caches:
            values[name].type.tensor_type.elem_type = TensorProto.INT8
        scales = [f"{name}_scale" for name in caches]
        for name, scale in zip(caches, scales, strict=True):
            shape = [size.dim_param or size.dim_value for size in values[name].type.tensor_type.shape.dim[:3]]
            made = helper.make_tensor_value_info(scale, TensorProto.FLOAT, shape)
            (graph.input if name in node.input else graph.output).append(made)
        inputs = [*node.input[:_TABLES], *scales[:2], *node.input[_TABLES:]]
        del node.input[:]
        node.input.extend(inputs)
        node.output.extend(scales[2:])
        node.op_type = OVER_BYTES
    return True
