"""Running a graph during import: plainly, from an empty KV cache, without the engine's batches and slots.

Used to verify, calibrate and record the golden set, and therefore simple rather than fast.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from magnitude.errors import ImportFailed
from magnitude.kernels.library import kernels
from magnitude.models.description import KERNEL_GRAPH_FILES, DecoderShape, EncoderShape, kv_parts


def open_session(path: Path) -> Any:
    """A session on the CPU; a kernel plan computes on as many threads as its process has set for kernels. Raises
    `ImportFailed` with ONNX Runtime's reason in one line, `EngineError` `kernels_unusable` for a kernel plan where
    there are no kernels."""
    onnxruntime.set_default_logger_severity(4)
    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if path.name in KERNEL_GRAPH_FILES:
        options.register_custom_ops_library(str(kernels.library().path))
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions have no common base but Exception
        reason = " ".join(str(error).split())[:600]
        raise ImportFailed(
            f"{path.name}: ONNX Runtime {onnxruntime.__version__} cannot load this graph: {reason}",
            hint="Check the file's sha256, or export it again for this version",
            param=str(path),
        ) from error


class DecoderRunner:
    """One decoder graph. `run` starts with an empty KV cache each time."""

    def __init__(self, path: Path, shape: DecoderShape) -> None:
        self._session = open_session(path)
        self.path = path
        self.shape = shape
        self._inputs = {node.name for node in self._session.get_inputs()}
        self._past = {
            shape.kv_names(part.name)[0] % layer: np.zeros((1, shape.kv_heads, 0, *part.tail), part.dtype)
            for part in kv_parts(shape.kv_type, shape.head_dim)
            for layer in range(shape.layers)
        }

    def _feed(self, ids: list[int]) -> dict[str, NDArray[Any]]:
        feed: dict[str, NDArray[Any]] = {self.shape.input_ids: np.asarray([ids], np.int64), **self._past}
        if self.shape.attention_mask in self._inputs:
            feed[str(self.shape.attention_mask)] = np.ones((1, len(ids)), np.int64)
        if self.shape.position_ids in self._inputs:
            feed[str(self.shape.position_ids)] = np.arange(len(ids), dtype=np.int64)[None]
        if self.shape.logit_rows in self._inputs:
            feed[str(self.shape.logit_rows)] = np.arange(len(ids), dtype=np.int64)
        return feed

    def values(self, names: list[str], ids: list[int]) -> list[NDArray[Any]]:
        """Any outputs of the graph for `ids`."""
        found: list[NDArray[Any]] = self._session.run(names, self._feed(ids))
        return found

    def logits(self, ids: list[int]) -> NDArray[np.float32]:
        """`[positions, vocabulary]`: a row for each of `ids`, or the last one only, where the graph gives no more."""
        (rows,) = self._session.run([self.shape.logits], self._feed(ids))
        result: NDArray[np.float32] = rows.reshape(-1, rows.shape[-1]).astype(np.float32, copy=False)
        return result


class EncoderRunner:
    """One encoder graph that pools inside."""

    def __init__(self, path: Path, shape: EncoderShape) -> None:
        self._session = open_session(path)
        self._shape = shape

    def vector(self, ids: list[int]) -> NDArray[np.float32]:
        """The embedding (or the score) of one text."""
        row = np.asarray([ids], np.int64)
        feed = {"input_ids": row, "attention_mask": np.ones_like(row)}
        if self._shape.token_type_ids:
            feed["token_type_ids"] = np.zeros_like(row)
        (rows,) = self._session.run([self._shape.output], feed)
        result: NDArray[np.float32] = rows[0]
        return result
