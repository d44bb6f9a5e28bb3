"""Tiny sources for whole imports: folders with weights of a few thousand numbers, and graphs that are broken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def decoder_folder(golden: Path, target: Path, name: str = "llama_tied") -> Path:
    """A Hugging Face folder of a tiny decoder, with a tokenizer that fits its vocabulary."""
    shutil.copytree(golden / name, target)
    letters = " \nabcdefghijklmnopqrstuvwxyz0123456789.,:;?!'\"()[]{}=+-*/<>_"
    vocabulary = {text: i for i, text in enumerate(["<unk>", "<s>", "</s>", *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(target / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    return target


def graph(
    *,
    operator: str = "Relu",
    domain: str = "",
    opset: int = 17,
    ir_version: int = 9,
    nodes: list[onnx.NodeProto] | None = None,
) -> onnx.ModelProto:
    """One node from `x` to `y`, both float `[n, 2]`."""
    shape = ["n", 2]
    made = helper.make_graph(
        nodes or [helper.make_node(operator, ["x"], ["y"], domain=domain)],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(made, opset_imports=opsets, ir_version=ir_version)


def graph_with_external_data(folder: Path, location: str) -> Path:
    """A graph whose weight is said to lie in `location`, which need not exist."""
    weight = numpy_helper.from_array(np.ones((1, 2), np.float32), "w")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": "8"}.items():
        weight.external_data.add(key=key, value=value)
    model = graph(nodes=[helper.make_node("Add", ["x", "w"], ["y"])])
    model.graph.initializer.append(weight)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path
