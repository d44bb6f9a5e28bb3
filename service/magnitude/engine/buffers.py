"""Memory for inputs and outputs of graph runs: planned by lifetimes, in one block, bound by pointer."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

# A cache line of every CPU that we run on, and the widest vector register.
ALIGNMENT = 64


class Buffer(msgspec.Struct, frozen=True):
    """`bytes` that hold something from step `first` to step `last`, both included."""

    name: str
    bytes: int
    first: int
    last: int


class BufferPlan(msgspec.Struct, frozen=True):
    """Where each buffer begins in a block of `total_bytes`."""

    offsets: dict[str, int]
    total_bytes: int


def plan_buffers(buffers: Sequence[Buffer]) -> BufferPlan:
    """Lay buffers into one block so that those that live at the same time do not overlap.

    Greedy by size: the largest first, each at the lowest offset that is free during its life (Pisarchyk and Lee,
    "Efficient Memory Management for Deep Neural Net Inference", 2020).
    """
    placed: list[tuple[int, int, Buffer]] = []  # begin, end
    for buffer in sorted(buffers, key=lambda b: (-b.bytes, b.first, b.name)):
        size = -(-buffer.bytes // ALIGNMENT) * ALIGNMENT
        begin = 0
        for other_begin, other_end, other in sorted(placed, key=lambda p: p[0]):
            together = buffer.first <= other.last and other.first <= buffer.last
            if together and begin < other_end and other_begin < begin + size:
                begin = other_end
        placed.append((begin, begin + size, buffer))
    return BufferPlan(
        offsets={buffer.name: begin for begin, _, buffer in placed},
        total_bytes=max((end for _, end, _ in placed), default=0),
    )


class Block:
    """Anonymous memory from the kernel: zero at first, resident only where it was touched, page-aligned."""

    def __init__(self, size_bytes: int) -> None:
        # The mapping lives as long as the last view of it.
        self._memory: NDArray[np.uint8] = np.frombuffer(mmap.mmap(-1, max(1, size_bytes)), np.uint8)

    @property
    def size_bytes(self) -> int:
        return self._memory.nbytes

    def view(self, offset: int, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """The array at `offset`, C-ordered. Raises `ValueError` where it would not fit."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if offset < 0 or offset + size > self.size_bytes:
            raise ValueError(f"{size} bytes at {offset} do not fit into a block of {self.size_bytes}")
        return self._memory[offset : offset + size].view(dtype).reshape(shape)
