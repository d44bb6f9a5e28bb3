"""Linear layers: choose how a matrix is stored, and emit its nodes.

| stored as      | nodes                                                                                        |
|----------------|----------------------------------------------------------------------------------------------|
| blocks         | MatMulNBits                                                                                  |
| blocks+minimum | MatMulNBits, and a float product of the activations' block sums added to it (`correction`)   |
| with wide      | the same, with the wide channels beside the block sums                                       |
| float32        | MatMul                                                                                       |

The correction takes 15 % of a decode step's processor time (SmolLM2-135M, AVX2, 256 positions), most of it in the
product itself. Block sums by AveragePool or by a product with an indicator matrix, and Gemm in place of MatMul and
Add on a flattened stream, were within 3 % of the form used here.

Wide channels: where activations are rounded to INT8, a block of 32 shares one step, a 127th of its largest value.
A few channels of a norm's output are much larger than all others, always the same ones, and make the step of their
blocks coarse (Dettmers et al., LLM.int8(), 2022, take such channels out of the INT8 product for the same reason). The
norm's own weights make them smaller by 2^12, so that they vanish from the INT8 product, and a small float product
adds what is missing: exactly, since a power of two rounds nothing. It rides on the correction for minima.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from magnitude.models.graphs import blocks
from magnitude.models.graphs.graph import GraphWriter
from magnitude.models.sources.source import BlockMatrix, WeightSource

Bits = Literal[4, 8, 16]

# Channels of a norm's output (by the output's name) that are multiplied in float.
WideChannels = Mapping[str, tuple[int, ...]]

# Far above what any channel exceeds the others by (some 100 in SmolLM2), and far from float32's ends.
SHRINK = np.float32(4096)


class StoredWeights(msgspec.Struct, frozen=True, kw_only=True):
    """How a group of tensors was stored: the manifest's account of what an import changed.

    `lossless` means that the stored values equal those that the source's blocks or floats stand for.
    """

    tensors: tuple[str, ...]
    source_format: str
    stored_format: str
    lossless: bool


class LinearLayers:
    """Emits the linear layers of one graph and keeps account of how their weights were stored."""

    def __init__(self, graph: GraphWriter, source: WeightSource, *, bits: Bits, accuracy_level: int):
        self._graph = graph
        self._source = source
        self._bits = bits
        self._accuracy_level = accuracy_level
        self._aside: dict[tuple[str, int], str] = {}
        self._wide: dict[str, tuple[int, ...]] = {}
        self.account: list[StoredWeights] = []

    def shrink(self, x: str, channels: tuple[int, ...], norm: NDArray[np.float32]) -> NDArray[np.float32]:
        """The weights of the norm that gives `x`, with these channels made small; products of `x` make up for it."""
        self._wide[x] = channels
        smaller = norm.copy()
        smaller[list(channels)] /= SHRINK
        return smaller

    def apply(self, x: str, layers: list[str], out: str, *, bits: Bits | None = None) -> str | None:
        """Emit one product of `x` with the stacked matrices of `layers` (names without `.weight`), biases included.

        Returns the output's name, or None, with nothing emitted, where the matrices cannot be stacked because they
        are stored differently.
        """
        names = [f"{layer}.weight" for layer in layers]
        wanted = bits or self._bits
        if wanted == 16 or not all(blocks.can_be_blocked(self._source.shape(n)[1]) for n in names):
            weights = np.concatenate([self._source.floats(n) for n in names])
            self._note(names, "float32", lossless=True)
            weights[:, list(self._wide.get(x, ()))] *= SHRINK
            return self._float_product(x, weights, self._bias(layers, out), out)
        matrices = [self._matrix(name, wanted) for name in names]
        stacked = blocks.stack([matrix for matrix, _ in matrices])
        if stacked is None:
            return None
        for name, (matrix, lossless) in zip(names, matrices, strict=True):
            self._note([name], _stored_format(matrix), lossless=lossless)
        return self._block_product(x, stacked, self._bias(layers, out), out)

    def _matrix(self, name: str, bits: Literal[4, 8]) -> tuple[BlockMatrix, bool]:
        """The blocks to store for a matrix, and whether they equal the source's."""
        matrix = self._source.blocks(name)
        # Formats between 4 and 8 bits keep their blocks even in a 4-bit import: whoever made the file chose them for
        # the matrices that need it. Eight whole bits were no such choice.
        if matrix is not None and (matrix.bits <= bits or matrix.format != "Q8_0"):
            return matrix, True
        return blocks.quantise(self._source.floats(name), bits), False

    def _note(self, names: list[str], stored: str, *, lossless: bool) -> None:
        formats = "+".join(dict.fromkeys(self._source.stored_as(n) for n in names))
        self.account.append(
            StoredWeights(tensors=tuple(names), source_format=formats, stored_format=stored, lossless=lossless)
        )

    def _bias(self, layers: list[str], out: str) -> str | None:
        names = [f"{layer}.bias" for layer in layers]
        have = self._source.tensor_names()
        if not any(name in have for name in names):
            return None
        parts = [
            self._source.floats(b) if b in have else np.zeros(self._source.shape(f"{layer}.weight")[0], np.float32)
            for b, layer in zip(names, layers, strict=True)
        ]
        return self._graph.tensor(f"{out}.bias", np.concatenate(parts))

    def _float_product(self, x: str, weights: NDArray[np.float32], bias: str | None, out: str) -> str:
        graph = self._graph
        product = out if bias is None else f"{out}.product"
        graph.node("MatMul", [x, graph.tensor(f"{out}.weight", weights.T)], product)
        return product if bias is None else graph.node("Add", [product, bias], out)

    def _block_product(self, x: str, matrix: BlockMatrix, bias: str | None, out: str) -> str:
        graph = self._graph
        wide = self._wide.get(x, ())
        corrected = matrix.minimum is not None or len(wide) > 0
        product = f"{out}.product" if corrected else out
        inputs = [x, graph.tensor(f"{out}.codes", blocks.pack(matrix)), graph.tensor(f"{out}.scale", matrix.scale)]
        graph.contrib(
            "MatMulNBits",
            inputs if bias is None else [*inputs, "", "", bias],
            product,
            K=matrix.columns,
            N=matrix.rows,
            bits=matrix.bits,
            block_size=matrix.block,
            accuracy_level=self._accuracy_level,
        )
        if not corrected:
            return product
        parts = [] if matrix.minimum is None else [blocks.correction(matrix)]
        if wide:
            # The INT8 product has one part of SHRINK of a wide channel already.
            parts.append(matrix.floats()[:, list(wide)].T * (SHRINK - 1))
        correction = graph.tensor(f"{out}.correction", np.concatenate(parts))
        graph.node("MatMul", [self._beside(x, matrix), correction], f"{out}.corrected")
        return graph.node("Add", [product, f"{out}.corrected"], out)

    def _beside(self, x: str, matrix: BlockMatrix) -> str:
        """What the float product beside the blocks reads: sums of `x` over the blocks of its last axis, where the
        matrix has minima, and the wide channels of `x`. Computed once for all products that read the same.
        """
        graph, wide = self._graph, self._wide.get(x, ())
        block = 0 if matrix.minimum is None else matrix.block
        if (x, block) in self._aside:
            return self._aside[x, block]
        if wide and block:
            # One product with zeros and ones: cheaper than sums, a look-up and joining them.
            count = matrix.columns // block
            selection = np.zeros((matrix.columns, count + len(wide)), np.float32)
            selection[np.arange(matrix.columns), np.arange(matrix.columns) // block] = 1
            selection[list(wide), count + np.arange(len(wide))] = 1
            found = graph.node("MatMul", [x, graph.tensor(f"{x}.selection", selection)], f"{x}.beside{block}")
        elif wide:
            found = graph.node("Gather", [x, graph.constant(wide)], f"{x}.wide", attributes={"axis": -1})
        else:
            graph.node("Reshape", [x, graph.constant([0, 0, matrix.columns // block, block])], f"{x}.blocks{block}")
            found = graph.node(
                "ReduceSum",
                [f"{x}.blocks{block}", graph.constant([-1])],
                f"{x}.sums{block}",
                attributes={"keepdims": 0},
            )
        self._aside[x, block] = found
        return found


def _stored_format(matrix: BlockMatrix) -> str:
    minimum = "+minimum" if matrix.minimum is not None else ""
    return f"int{matrix.bits}/{matrix.block}{minimum}"
