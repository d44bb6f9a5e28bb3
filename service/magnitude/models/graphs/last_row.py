"""The form of a decoder that ONNX Runtime GenAI knows: no choice of rows, the logits of each row's last token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from magnitude.models.description import LOGIT_ROWS
from magnitude.models.graphs.graph import read_model, write_model


def write_last_row_graph(serving: Path, target: Path) -> None:
    """Write `serving` without its input `logit_rows` to `target` beside it; both use the same data file.

    The graph finds the last token of each of its rows by itself. Its logits are `[batch, 1, vocab]`.
    """
    model = read_model(serving)
    graph = model.graph
    for at, value in enumerate(graph.input):
        if value.name == LOGIT_ROWS:
            del graph.input[at]
            break
    else:
        raise AssertionError(f"a serving graph has the input {LOGIT_ROWS}")
    for node in graph.node:
        node.output[:] = ["logits.rows" if name == "logits" else name for name in node.output]
    vocab = graph.output[0].type.tensor_type.shape.dim[-1].dim_value
    assert graph.output[0].name == "logits", "the logits are a decoder's first output"
    graph.output[0].CopyFrom(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1, vocab]))
    for name, value in (("last.zero", 0), ("last.one", 1)):
        graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "last.axis"))
    head = [
        helper.make_node("Shape", ["input_ids"], ["last.shape"]),
        helper.make_node("Gather", ["last.shape", "last.one"], ["last.tokens"], axis=0),
        helper.make_node("Gather", ["last.shape", "last.zero"], ["last.batch"], axis=0),
        helper.make_node("Sub", ["last.tokens", "last.one"], ["last.first"]),
        helper.make_node("Mul", ["last.batch", "last.tokens"], ["last.end"]),
        helper.make_node("Range", ["last.first", "last.end", "last.tokens"], [LOGIT_ROWS]),
    ]
    body = [*head, *graph.node, helper.make_node("Unsqueeze", ["logits.rows", "last.axis"], ["logits"])]
    del graph.node[:]
    graph.node.extend(body)
    write_model(model, target)
