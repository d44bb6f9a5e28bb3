"""Find the channels behind a decoder's norms that make INT8 activations coarse, by running the golden texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from magnitude.models.description import DecoderShape
from magnitude.models.graphs.blocks import BLOCK
from magnitude.models.graphs.graph import read_model, write_model
from magnitude.models.graphs.linear import WideChannels
from magnitude.models.importing.graph_runner import DecoderRunner

# Channels taken of each norm. SmolLM2-135M, rounding noise of the attention's input: 4 channels leave 0.22 of it, 8
# 0.16, 14 0.12; of the MLP's input 0.44, 0.36, 0.33. Each one costs a float column in every product behind the norm.
CHANNELS = 8


def find_wide_channels(graph: Path, shape: DecoderShape, texts: Sequence[list[int]]) -> WideChannels:
    """The wide channels of each norm in front of the attention and the MLP, by the name of the norm's output.

    `graph` is a serving graph without wide channels. A graph that also gives the norms' outputs is written beside it
    and removed again.
    """
    names = [f"layers.{layer}.{part}.in" for layer in range(shape.layers) for part in ("attention", "mlp")]
    model = read_model(graph)
    for name in names:
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    observing = graph.with_name(f"observing-{graph.name}")
    write_model(model, observing)
    try:
        runner = DecoderRunner(observing, shape)
        seen = [runner.values(names, ids) for ids in texts]
    finally:
        observing.unlink()
    return {
        name: widest(np.concatenate([np.abs(values[at]).reshape(-1, shape.hidden_size) for values in seen]), CHANNELS)
        for at, name in enumerate(names)
        if shape.hidden_size % BLOCK == 0
    }


def widest(magnitudes: NDArray[np.float32], count: int) -> tuple[int, ...]:
    """The `count` channels of `[tokens, channels]` whose removal lowers the rounding noise most, best first.

    The noise of a block is proportional to the square of its largest value. Greedy: each choice sees the blocks
    without those chosen before.
    """
    tokens, channels = magnitudes.shape
    left = magnitudes.astype(np.float32).reshape(tokens, channels // BLOCK, BLOCK)
    gains = [_best_gain(left[:, block]) for block in range(left.shape[1])]
    chosen: list[int] = []
    for _ in range(min(count, channels)):
        block = max(range(len(gains)), key=lambda at: gains[at][0])
        gain, channel = gains[block]
        if gain <= 0:
            break
        chosen.append(block * BLOCK + channel)
        left[:, block, channel] = 0
        gains[block] = _best_gain(left[:, block])
    return tuple(chosen)


def _best_gain(block: NDArray[np.float32]) -> tuple[float, int]:
    """How much the mean square of the block's maximum falls without its best channel, and which one that is."""
    first = block.argmax(axis=1)
    top = np.partition(block, -2, axis=1)[:, -2:]
    fall = np.bincount(first, weights=top[:, 1] ** 2 - top[:, 0] ** 2, minlength=block.shape[1]) / len(block)
    channel = int(fall.argmax())
    return float(fall[channel]), channel
