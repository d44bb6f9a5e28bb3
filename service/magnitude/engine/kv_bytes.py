"""KV in bytes with one scale for each position and head: the rounding that the kernels do when they append.

A value is `scale` times a whole number from -127 to 127, and a scale is the largest magnitude of the `head_dim`
values that it scales, divided by 127; nothing is calibrated. A value is off by at most 0.501 of its scale. The steps
are those of `kernels/src/cache_bytes.cc` in the same order, each one IEEE 754 operation, so that both give the same
bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

# As in the kernels: below it a scale is of no use to a float32 sum, and far below it quotients would overflow.
_SMALLEST = np.float32(2.0**-100)
_MOST = np.float32(127)


def dequantise(codes: NDArray[np.int8], scales: F32, out: F32) -> None:
    """Write what int8 `codes` `[n, head_dim]` with `scales` `[n]` stand for to `out` `[n, head_dim]`."""
    np.multiply(codes, scales[:, None], out=out, dtype=np.float32, casting="unsafe")


def quantise(rows: F32, codes: NDArray[np.int8], scales: F32) -> None:
    """Write float32 `rows` `[n, head_dim]` to `codes` and `scales`. `rows` are lost.

    A row whose magnitudes are all below 2⁻¹⁰⁰ becomes zero; the scale of one with an infinity or a NaN is a NaN.
    """
    top = np.abs(rows).max(axis=1)
    known = np.isfinite(top)
    used = known & (top >= _SMALLEST)
    safe = np.where(used, top, _MOST)
    np.multiply(rows, (_MOST / safe)[:, None], out=rows)
    np.rint(rows, out=rows)
    rows[~used] = 0
    codes[:] = rows
    scales[:] = np.where(used, safe / _MOST, np.where(known, np.float32(0), np.float32(np.nan)))
