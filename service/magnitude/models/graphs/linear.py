"""Linear layers: choose how a matrix is stored, and emit its nodes.

| stored as      | nodes                                                                                        |
|----------------|----------------------------------------------------------------------------------------------|
| blocks         | MatMulNBits                                                                                  |
| blocks+minimum | MatMulNBits, and a float product of the activations' block sums added to it (`correction`)   |
| float32        | MatMul                                                                                       |

The correction takes 15 % of a decode step's processor time (SmolLM2-135M, AVX2, 256 positions), most of it in the
product itself. Block sums by AveragePool or by a product with an indicator matrix, and Gemm in place of MatMul and
Add on a flattened stream, were within 3 % of the form used here.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from magnitude.models.graphs import blocks
from magnitude.models.graphs.graph import GraphWriter
from magnitude.models.sources.source import BlockMatrix, WeightSource

Bits = Literal[4, 8, 16]


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
        self._block_sums: dict[tuple[str, int], str] = {}
        self.account: list[StoredWeights] = []

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
        corrected = matrix.minimum is not None
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
        sums = self._sums(x, matrix)
        graph.node("MatMul", [sums, graph.tensor(f"{out}.correction", blocks.correction(matrix))], f"{out}.minima")
        return graph.node("Add", [product, f"{out}.minima"], out)

    def _sums(self, x: str, matrix: BlockMatrix) -> str:
        """Sums of `x` over blocks of its last axis, computed once for all products that read `x`."""
        graph, key = self._graph, (x, matrix.block)
        if key not in self._block_sums:
            count = matrix.columns // matrix.block
            graph.node("Reshape", [x, graph.constant([0, 0, count, matrix.block])], f"{x}.blocks{matrix.block}")
            self._block_sums[key] = graph.node(
                "ReduceSum",
                [f"{x}.blocks{matrix.block}", graph.constant([-1])],
                f"{x}.sums{matrix.block}",
                attributes={"keepdims": 0},
            )
        return self._block_sums[key]


def _stored_format(matrix: BlockMatrix) -> str:
    minimum = "+minimum" if matrix.minimum is not None else ""
    return f"int{matrix.bits}/{matrix.block}{minimum}"
