"""Quantise matrices to blocks, and pack blocks for ONNX Runtime's operators. Plain NumPy, no graph.

Blocks run along a row, as MatMulNBits wants them: `[rows, columns / block, block]`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from magnitude.models.sources.source import BlockMatrix

# ggml's block as well: GGUF weights keep theirs, and 32 is the smallest size with fast kernels in ONNX Runtime.
BLOCK = 32

# Fractions of a block's range that are tried as its scale. Cutting the outermost weights a little lowers the error
# of the others: on MiniLM's weights from 0.75 to 0.71 times a symmetric code's; 0.75 and 0.7 brought nothing more.
_SHRINK_STEPS = (1.0, 0.95, 0.9, 0.85, 0.8)

# Rows that are quantised at once: the search holds some five float copies of them.
_ROWS_AT_ONCE = 1024


def can_be_blocked(columns: int, block: int = BLOCK) -> bool:
    """Whether rows of this width divide into whole blocks."""
    return columns % block == 0


def quantise(weights: NDArray[np.float32], bits: Literal[4, 8]) -> BlockMatrix:
    """Quantise a float matrix `[rows, columns]` to blocks of 32 along its rows.

    8 bits are symmetric around zero. 4 bits get a scale and a minimum for each block, found by the least squares
    over a few candidate ranges: on the float weights of MiniLM its squared error is 0.71 times that of a symmetric
    4-bit code. The columns must divide into blocks.
    """
    rows, columns = weights.shape
    parts = [
        _with_minimum(piece, bits) if bits == 4 else _symmetric(piece, bits)
        for piece in np.split(
            weights.reshape(rows, columns // BLOCK, BLOCK), range(_ROWS_AT_ONCE, rows, _ROWS_AT_ONCE)
        )
    ]
    minima = [m for _, _, m in parts if m is not None]
    return BlockMatrix(
        codes=np.concatenate([c for c, _, _ in parts]),
        scale=np.concatenate([s for _, s, _ in parts]),
        minimum=np.concatenate(minima) if minima else None,
        bits=bits,
        format=f"int{bits}",
    )


_Part = tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32] | None]


def _symmetric(blocks: NDArray[np.float32], bits: int) -> _Part:
    """The largest weight of each block, with its sign, becomes the lowest code, so that all codes are used."""
    zero = 1 << (bits - 1)
    at = np.abs(blocks).argmax(-1)[..., None]
    scale = np.take_along_axis(blocks, at, -1) / np.float32(-zero)
    safe = np.where(scale == 0, np.float32(1), scale)
    codes = np.clip(np.rint(blocks / safe) + zero, 0, 2 * zero - 1).astype(np.uint8)
    return codes, scale[..., 0].astype(np.float32), None


def _with_minimum(blocks: NDArray[np.float32], bits: int) -> _Part:
    top = np.float32((1 << bits) - 1)
    low, high = blocks.min(-1, keepdims=True), blocks.max(-1, keepdims=True)
    centre = (low + high) / 2
    best: tuple[NDArray[np.float32], ...] | None = None
    for shrink in _SHRINK_STEPS:
        scale = (high - low) / top * np.float32(shrink)
        start = centre - scale * top / 2
        codes = np.clip(np.rint((blocks - start) / np.where(scale == 0, np.float32(1), scale)), 0, top)
        scale, minimum = _least_squares(blocks, codes)
        error = ((scale * codes + minimum - blocks) ** 2).sum(-1, keepdims=True)
        found = (codes, scale, minimum, error)
        if best is None:
            best = found
        else:
            better = error < best[3]
            best = tuple(np.where(better, new, old) for new, old in zip(found, best, strict=True))
    assert best is not None
    codes, scale, minimum, _ = best
    return codes.astype(np.uint8), scale[..., 0].astype(np.float32), minimum[..., 0].astype(np.float32)


def _least_squares(
    blocks: NDArray[np.float32], codes: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scale and minimum that fit `blocks` best for fixed `codes`: simple linear regression in each block."""
    mean_code, mean = codes.mean(-1, keepdims=True), blocks.mean(-1, keepdims=True)
    spread = ((codes - mean_code) ** 2).sum(-1, keepdims=True)
    slope = ((codes - mean_code) * (blocks - mean)).sum(-1, keepdims=True) / np.where(spread == 0, 1, spread)
    return slope, mean - slope * mean_code


def stack(matrices: list[BlockMatrix]) -> BlockMatrix | None:
    """Matrices of equal width as one with all their rows; None if their blocks differ in size or bits.

    A matrix without a minimum gets the one that its zero code stands for.
    """
    first = matrices[0]
    if any((m.bits, m.codes.shape[1:]) != (first.bits, first.codes.shape[1:]) for m in matrices):
        return None
    minimum = None
    if any(m.minimum is not None for m in matrices):
        minimum = np.concatenate([-m.zero * m.scale if m.minimum is None else m.minimum for m in matrices])
    return BlockMatrix(
        codes=np.concatenate([m.codes for m in matrices]),
        scale=np.concatenate([m.scale for m in matrices]),
        minimum=minimum,
        bits=first.bits,
        format="+".join(dict.fromkeys(m.format for m in matrices)),
    )


def widen(matrix: BlockMatrix) -> BlockMatrix:
    """The same weights in codes of 8 bits. The matrix must have no minimum."""
    assert matrix.minimum is None
    codes = matrix.codes + np.uint8(128 - matrix.zero)
    return BlockMatrix(codes, matrix.scale, None, 8, matrix.format)


def pack(matrix: BlockMatrix) -> NDArray[np.uint8]:
    """The codes as MatMulNBits reads them: `[rows, blocks, block * bits / 8]`, low half first."""
    if matrix.bits == 8:
        return matrix.codes
    return matrix.codes[..., 0::2] | (matrix.codes[..., 1::2] << np.uint8(4))


def correction(matrix: BlockMatrix) -> NDArray[np.float32]:
    """What a product with symmetric codes lacks: float32 `[blocks, rows]`.

    With codes c, zero code z, scale d and minimum m of a block, and x the activations:
    `sum(x * (d * c + m)) = sum(x * d * (c - z)) + (m + z * d) * sum(x)`. The first term is MatMulNBits, the second
    a small product of the block sums of x with the matrix returned here. No rounding is added to the weights.
    """
    assert matrix.minimum is not None
    return np.ascontiguousarray((matrix.minimum + np.float32(matrix.zero) * matrix.scale).T)
