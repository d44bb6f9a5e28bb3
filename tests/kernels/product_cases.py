"""Random calls for the driver, and what products must give: the contract in float64, and its bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from kernel_driver import Command, command

INT4, INT4_MINIMUM, INT8 = 1, 2, 3
KINDS = {"int4": INT4, "int4_minimum": INT4_MINIMUM, "int8": INT8}
BLOCK = 32
FLOAT32_ROUNDING = 2.0**-24


@dataclass(frozen=True)
class Weights:
    """Quantised weights [n, k], as the packer takes them."""

    kind: int
    n: int
    k: int
    q: np.ndarray  # [n, blocks * 32] integers
    scales: np.ndarray  # [n, blocks] float32
    minima: np.ndarray | None

    @property
    def blocks(self) -> int:
        return -(-self.k // BLOCK)

    @property
    def values(self) -> np.ndarray:
        if self.kind == INT8:
            return self.q.astype(np.int8)
        return (self.q[:, 0::2] | self.q[:, 1::2] << 4).astype(np.uint8)

    def dequantised(self) -> np.ndarray:
        """[n, k] float64, with scales and minima rounded to float16 as the packer does."""
        scales = np.repeat(self.scales.astype(np.float16).astype(np.float64), BLOCK, axis=1)
        if self.kind == INT4:
            w = scales * (self.q - 8.0)
        elif self.kind == INT8:
            w = scales * self.q
        else:
            assert self.minima is not None
            w = scales * self.q + np.repeat(self.minima.astype(np.float16).astype(np.float64), BLOCK, axis=1)
        return w[:, : self.k]

    def command(self, x: np.ndarray) -> Command:
        """Packs these weights in the driver and multiplies rows x by them."""
        minima = b"" if self.minima is None else self.minima.tobytes()
        values = self.values.tobytes()
        return command(
            f"product {self.kind} {self.n} {self.k} {len(x)} {len(values)}",
            *(values, self.scales.tobytes(), minima, x.astype(np.float32).tobytes()),
        )


def attention_command(rng: np.random.Generator, over_bytes: bool, rows: int, window: int = 0) -> Command:
    """Appends to an empty cache of 2 KV heads and attention over it with 6 heads of 64."""
    queries = rng.standard_normal((rows, 6, 64)).astype(np.float32)
    keys, values = (rng.standard_normal((rows, 2, 64)).astype(np.float32) for _ in range(2))
    arrays = queries.tobytes(), keys.tobytes(), values.tobytes()
    return command(f"attend {int(over_bytes)} {rows} 6 2 64 {window}", *arrays)


def random_weights(rng: np.random.Generator, kind: int, n: int, k: int) -> Weights:
    """All values of q occur, the most negative included; scales of either sign and of very different sizes."""
    blocks = -(-k // BLOCK)
    low, high = (-128, 128) if kind == INT8 else (0, 16)
    q = rng.integers(low, high, (n, blocks * BLOCK), dtype=np.int16)
    q[0, :2] = low, high - 1
    scales = (rng.standard_normal((n, blocks)) * 10.0 ** rng.integers(-4, 1, (n, blocks))).astype(np.float32)
    minima = rng.standard_normal((n, blocks)).astype(np.float32) if kind == INT4_MINIMUM else None
    return Weights(kind, n, k, q, scales, minima)


def rounded_rows(x: np.ndarray) -> np.ndarray:
    """Rows [m, k] as the product sees them: float64 of INT8 values times their block's scale."""
    m, k = x.shape
    padded = np.zeros((m, -(-k // BLOCK) * BLOCK), np.float32)
    padded[:, :k] = x
    blocks = padded.reshape(m, -1, BLOCK)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    used = largest >= np.float32(2.0**-100)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=used)
    values = np.rint(blocks * inverse).astype(np.float64)
    scales = np.where(used, largest / np.float32(127), np.float32(0)).astype(np.float64)
    return (values * scales).reshape(m, -1)[:, :k]


def expected(weights: Weights, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """y[m, n] in float64 after the rounding of rows, and how far float32 sums may be from it."""
    w, rows = weights.dequantised(), rounded_rows(x)
    # A term for the scale and one for the minimum of each block: twice the blocks, and each is rounded with its
    # factors. In blocks, a sum of integers can be far smaller than its terms, never larger.
    if weights.kind == INT4_MINIMUM:
        assert weights.minima is not None
        sizes = np.abs(np.repeat(weights.scales, BLOCK, axis=1)[:, : weights.k]) * weights.q[:, : weights.k]
        sizes = sizes + np.abs(np.repeat(weights.minima, BLOCK, axis=1)[:, : weights.k])
        terms = np.abs(rows) @ (sizes * 1.01).T
    else:
        terms = np.abs(rows) @ np.abs(w).T
    return rows @ w.T, terms * (2 * weights.blocks + 4) * FLOAT32_ROUNDING + 1e-38


def rounding_bound(weights: Weights, x: np.ndarray) -> np.ndarray:
    """[m, n]: what the header promises as the most that rounding the rows of x to INT8 adds."""
    m = len(x)
    padded = np.zeros((m, weights.blocks * BLOCK))
    padded[:, : weights.k] = np.abs(x)
    largest = padded.reshape(m, weights.blocks, BLOCK).max(axis=2)
    w = np.zeros((weights.n, weights.blocks * BLOCK))
    w[:, : weights.k] = np.abs(weights.dequantised())
    return 0.501 / 127 * largest @ w.reshape(weights.n, weights.blocks, BLOCK).sum(axis=2).T
