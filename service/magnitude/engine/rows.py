"""Rows of a batch: address space that shows any slots side by side.

A batch needs its members' KV next to each other in memory, but who generates together changes from step to step.
So each KV tensor gets a window of `rows` slots' worth of address space, and a generation's slot is mapped into the
row that it computes in: the same pages of the memfd, seen a second time. Nothing is copied, and a slot stays where
it is. Showing a slot of SmolLM2-135M (60 tensors) took 0.45 ms, and 3 ms more for the first read of 1,000 tokens.
"""

from __future__ import annotations

import ctypes
import mmap
import os

from magnitude.engine.kv_layout import KvLayout
from magnitude.errors import EngineError
from magnitude.models.description import KvPartName

# <asm-generic/mman.h>, the same on x86-64 and Arm; Python's mmap does not name them.
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _reserve(size_bytes: int) -> int:
    """Address space that nothing may touch yet."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return _checked(_libc.mmap(None, size_bytes, 0, flags, -1, 0))


def _map_file(address: int, size_bytes: int, fd: int, offset: int) -> None:
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED
    _checked(_libc.mmap(address, size_bytes, protection, flags, fd, offset))


def _checked(mapped: int | None) -> int:
    if mapped is None or mapped == _FAILED:
        number = ctypes.get_errno()
        raise EngineError(
            f"KV memory could not be mapped: {os.strerror(number)}",
            code="kv_not_mapped",
            hint="The kernel's limit on mappings (vm.max_map_count) or on address space may be too low",
        )
    return int(mapped)


class RowWindow:
    """`rows` rows over the memfd `fd`, which stays the caller's to close.

    Raises `EngineError` when the kernel does not give the address space. Nothing may be bound to the window any more
    when it is closed.
    """

    def __init__(self, fd: int, layout: KvLayout, rows: int) -> None:
        self._fd = os.dup(fd)
        self._layers = layout.layers
        # Of each tensor of a layer: where it begins in that layer's share of the window, where the first layer's
        # begins in the file, and what a slot takes in both. Showing a slot needs these for every tensor.
        self._places: dict[KvPartName, tuple[int, int, int]] = {}
        window_at = 0
        for part in layout.parts:
            one_bytes = layout.slot_bytes(part.name)
            self._places[part.name] = (window_at, layout.tensor_offset(0, part.name), one_bytes)
            window_at += rows * one_bytes
        self._layer_bytes = window_at
        self._file_layer_bytes = layout.layer_bytes
        self._size_bytes = layout.layers * window_at
        try:
            self._address = _reserve(self._size_bytes)
        except EngineError:
            os.close(self._fd)
            raise
        self._shown: list[int | None] = [None] * rows

    def show(self, row: int, slot: int) -> None:
        """From now on `row` is `slot`. A row that shows it already costs nothing."""
        if self._shown[row] == slot:
            return
        self._shown[row] = None  # in parts, until all are there
        for layer in range(self._layers):
            for part, (_, file_at, one_bytes) in self._places.items():
                offset = file_at + layer * self._file_layer_bytes + slot * one_bytes
                _map_file(self.address(layer, part, row), one_bytes, self._fd, offset)
        self._shown[row] = slot

    def address(self, layer: int, part: KvPartName, row: int) -> int:
        """Address of the `[rows - row, kv_heads, padded_len, ...]` block of one tensor that begins with `row`."""
        window_at, _, one_bytes = self._places[part]
        return self._address + layer * self._layer_bytes + window_at + row * one_bytes

    def close(self) -> None:
        if self._fd >= 0:
            _libc.munmap(self._address, self._size_bytes)
            os.close(self._fd)
            self._fd = -1
