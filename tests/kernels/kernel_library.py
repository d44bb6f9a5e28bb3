"""The kernels' C interface in this process, with arrays instead of pointers."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from kernel_driver import Refused

_INT64 = ctypes.c_int64
_SIZE = ctypes.c_size_t
_POINTER = ctypes.c_void_p


class Library:
    """Errors of the library are `Refused` here."""

    def __init__(self, path: Path) -> None:
        self.raw = ctypes.CDLL(str(path))
        self.raw.mk_error.restype = ctypes.c_char_p
        self.raw.mk_isa.restype = ctypes.c_char_p
        self.raw.mk_isa_name.restype = ctypes.c_char_p
        self.raw.mk_isa_use.argtypes = [ctypes.c_char_p]
        self.raw.mk_pack_bytes.restype = _INT64
        self.raw.mk_pack_bytes.argtypes = [ctypes.c_int, _INT64, _INT64]
        self.raw.mk_pack.argtypes = [
            *(ctypes.c_int, _INT64, _INT64, _POINTER, _SIZE, _POINTER, _POINTER, _POINTER, _SIZE),
        ]
        self.raw.mk_product.argtypes = [_POINTER, _SIZE, _POINTER, _INT64, _INT64, _POINTER, _INT64]
        self.raw.mk_pool_set.argtypes = [ctypes.c_int, _POINTER, _POINTER]

    def isas(self) -> list[str]:
        return [self.raw.mk_isa_name(i).decode() for i in range(self.raw.mk_isa_count())]

    def use(self, isa: str | None) -> None:
        self._check(self.raw.mk_isa_use(None if isa is None else isa.encode()))

    def isa(self) -> str:
        return str(self.raw.mk_isa().decode())

    def pack_bytes(self, kind: int, n: int, k: int) -> int:
        size = int(self.raw.mk_pack_bytes(kind, n, k))
        if size < 0:
            raise Refused(self.raw.mk_error().decode())
        return size

    def pack(
        self, kind: int, n: int, k: int, values: np.ndarray, scales: np.ndarray, minima: np.ndarray | None = None
    ) -> np.ndarray:
        packed = np.zeros(self.pack_bytes(kind, n, k), np.uint8)
        self.pack_into(packed, kind, n, k, values, scales, minima)
        return packed

    def pack_into(
        self,
        packed: np.ndarray,
        kind: int,
        n: int,
        k: int,
        values: np.ndarray,
        scales: np.ndarray,
        minima: np.ndarray | None = None,
    ) -> None:
        sizes = values.nbytes, packed.nbytes
        pointers = _pointer(values), _pointer(scales), _pointer(minima), _pointer(packed)
        self._check(self.raw.mk_pack(kind, n, k, pointers[0], sizes[0], *pointers[1:], sizes[1]))

    def product(self, packed: np.ndarray, x: np.ndarray, n: int) -> np.ndarray:
        """y[m, n] of x[m, k]."""
        m, k = x.shape
        y = np.full((m, n), np.nan, np.float32)
        x = np.ascontiguousarray(x, np.float32)
        self._check(self.raw.mk_product(_pointer(packed), packed.nbytes, _pointer(x), m, k, _pointer(y), n))
        return y

    def set_pool(self, threads: int, cores: list[int] | None = None, shares: list[float] | None = None) -> int:
        """How many threads run without the core that was wanted for them."""
        return self._check(
            self.raw.mk_pool_set(
                threads,
                None if cores is None else (ctypes.c_int * len(cores))(*cores),
                None if shares is None else (ctypes.c_float * len(shares))(*shares),
            )
        )

    def pool_threads(self) -> int:
        return int(self.raw.mk_pool_threads())

    def stop_pool(self) -> None:
        self._check(self.raw.mk_pool_stop())

    def _check(self, status: int) -> int:
        if status < 0:
            raise Refused(self.raw.mk_error().decode())
        return status


def _pointer(array: np.ndarray | None) -> int | None:
    return None if array is None else array.ctypes.data
