"""Find the scales of an INT8 KV cache by running the model with a float one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from magnitude.errors import ImportFailed
from magnitude.models.description import DecoderShape
from magnitude.models.graphs.decoder_graph import KvScales

# Room above the largest value that a channel showed: other text reaches further, and cutting its values off costs
# more than the bit of resolution that the room takes. SmolLM2-135M on 768 tokens of prose that were not in the
# calibration (110 tokens), mean KL against a float cache: by channel with room 1.1: 0.012, with 2.2: 0.003; one scale
# for the whole tensor with room 1.1: 0.0045, with 1.5: 0.009.
HEADROOM = 2.0
_LARGEST_CODE = 127


def calibrate_kv(graph_file: Path, shape: DecoderShape, texts: Sequence[Sequence[int]]) -> tuple[KvScales, ...]:
    """Scales for each layer, one for each channel of K and V.

    `graph_file` is the same model built with a float32 KV cache, `shape` that build's, and `texts` token ids of a few
    typical prompts (a few hundred tokens in all). Each is run once from an empty cache. Raises `ImportFailed` when
    there is no text, or when the model's K and V are not finite.
    """
    if not any(texts):
        raise ImportFailed("The KV calibration has no text", hint="Give at least one prompt")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(graph_file), options, providers=["CPUExecutionProvider"])
    outputs = [name % layer for layer in range(shape.layers) for name in (shape.present_key, shape.present_value)]
    largest = np.zeros((len(outputs), shape.kv_heads, shape.head_dim), np.float32)
    for ids in texts:
        if ids:
            present = session.run(outputs, _from_empty(shape, ids))
            largest = np.maximum(largest, [np.abs(kv).max(axis=(0, 2)) for kv in present])
    if not np.isfinite(largest).all():
        raise ImportFailed("The model computes K or V values that are not finite", hint="Its weights are damaged")
    # A channel that stays at zero needs no resolution, but its scale must not be zero.
    scales = np.maximum(largest * HEADROOM / _LARGEST_CODE, np.finfo(np.float32).tiny).reshape(len(outputs), -1)
    rows = [tuple(row.tolist()) for row in scales]
    return tuple(KvScales(key=key, value=value) for key, value in zip(rows[0::2], rows[1::2], strict=True))


def _from_empty(shape: DecoderShape, ids: Sequence[int]) -> dict[str, NDArray[Any]]:
    empty = np.zeros((1, shape.kv_heads, 0, shape.head_dim), np.float32)
    feeds: dict[str, NDArray[Any]] = {shape.input_ids: np.array([ids], np.int64)}
    if shape.attention_mask is not None:
        feeds[shape.attention_mask] = np.ones((1, len(ids)), np.int64)
    if shape.logit_rows is not None:
        feeds[shape.logit_rows] = np.zeros(1, np.int64)
    for layer in range(shape.layers):
        feeds[shape.past_key % layer] = feeds[shape.past_value % layer] = empty
    return feeds
