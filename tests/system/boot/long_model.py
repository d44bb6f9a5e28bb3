"""A tiny decoder with room for long answers, for streams that something can happen to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
# At some hundred tokens a second an answer lasts for the better part of a minute.
CONTEXT_TOKENS = 8192


def write_long_model(folder: Path) -> None:
    """The golden decoder of ONNX Runtime GenAI's builder, but for the length of its rotation tables."""
    golden = GOLDEN / "genai_tiny_llama"
    shutil.copytree(golden, folder, ignore=shutil.ignore_patterns("model.onnx*", "golden.npz"))
    model = onnx.load(golden / "model.onnx")
    for tensor in model.graph.initializer:
        if tensor.name in ("cos_cache", "sin_cache"):
            half = tensor.dims[1]
            angles = np.outer(np.arange(CONTEXT_TOKENS), 10000.0 ** (-np.arange(half) / half))
            table = np.cos(angles) if tensor.name == "cos_cache" else np.sin(angles)
            tensor.CopyFrom(numpy_helper.from_array(table.astype(np.float32), tensor.name))
    onnx.save(model, folder / "model.onnx")
    path = folder / "genai_config.json"
    config = json.loads(path.read_text())
    config["model"]["context_length"] = config["search"]["max_length"] = CONTEXT_TOKENS
    path.write_text(json.dumps(config, indent=2))
