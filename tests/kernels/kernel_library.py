"""The kernels' C interface in this process, with arrays instead of pointers."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from kernel_driver import Refused

_INT64 = ctypes.c_int64
_SIZE = ctypes.c_size_t
_POINTER = ctypes.c_void_p


class Counters(ctypes.Structure):
    """mk_counters."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("calls", "nanoseconds", "weight_bytes", "kv_bytes", "rows")]


class KvCache(ctypes.Structure):
    """mk_kv_cache, over arrays without gaps that this object keeps alive: [slots, kv_heads, positions, head_size]."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("over_bytes", "reserved")),
        *((name, _POINTER) for name in ("keys", "values", "key_scales", "value_scales")),
        *((name, _INT64) for name in ("keys_bytes", "values_bytes", "key_scales_bytes", "value_scales_bytes")),
        *((name, _INT64) for name in ("slots", "kv_heads", "positions", "head_size")),
        *((name, _INT64) for name in ("slot_stride", "head_stride", "position_stride")),
        *((name, _INT64) for name in ("scale_slot_stride", "scale_head_stride")),
    ]

    @classmethod
    def empty(cls, shape: tuple[int, int, int, int], *, over_bytes: bool) -> KvCache:
        cache = cls(over_bytes=int(over_bytes))
        element = np.int8 if over_bytes else np.float32
        cache.arrays = {name: np.zeros(shape, element) for name in ("keys", "values")}
        if over_bytes:
            cache.arrays |= {name: np.zeros(shape[:3], np.float32) for name in ("key_scales", "value_scales")}
        for name, array in cache.arrays.items():
            setattr(cache, name, _pointer(array))
            setattr(cache, f"{name}_bytes", array.nbytes)
        cache.slots, cache.kv_heads, cache.positions, cache.head_size = shape
        return cache


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
        self.raw.mk_pack_blocks_bytes.restype = _INT64
        self.raw.mk_pack_blocks_bytes.argtypes = [ctypes.c_int, _INT64, _INT64, ctypes.c_int]
        self.raw.mk_pack_blocks.argtypes = [
            *(ctypes.c_int, _INT64, _INT64, _POINTER, _SIZE, _POINTER, _POINTER, _POINTER, _SIZE),
        ]
        self.raw.mk_product.argtypes = [_POINTER, _SIZE, _POINTER, _INT64, _INT64, _POINTER, _INT64]
        self.raw.mk_pool_set.argtypes = [ctypes.c_int, _POINTER, _POINTER]

        self.raw.mk_kv_append.argtypes = [
            *(_POINTER, _INT64, _POINTER, _POINTER, _POINTER, _INT64, _INT64, _POINTER, _INT64, _INT64),
        ]
        self.raw.mk_attend.argtypes = [
            *(_POINTER, _INT64, _POINTER, _POINTER, _INT64, _INT64, ctypes.c_float),
            *(_POINTER, _INT64, _INT64, _POINTER, _INT64, _INT64),
        ]
        self.raw.mk_operator_name.restype = ctypes.c_char_p
        self.raw.mk_counters_read.argtypes = [ctypes.c_int, _POINTER]
        self.raw.mk_counters_reset.restype = None

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

    def pack_blocks(
        self, bits: int, codes: np.ndarray, scales: np.ndarray, correction: np.ndarray | None = None
    ) -> np.ndarray:
        """Codes [n, blocks, 4 · bits], scales [n, blocks], correction [blocks, n]."""
        n, blocks = scales.shape
        size = int(self.raw.mk_pack_blocks_bytes(bits, n, blocks, int(correction is not None)))
        packed = np.zeros(max(self._check(size), 0), np.uint8)
        codes = np.ascontiguousarray(codes)
        pointers = _pointer(codes), codes.nbytes, _pointer(scales), _pointer(correction), _pointer(packed)
        self._check(self.raw.mk_pack_blocks(bits, n, blocks, *pointers, packed.nbytes))
        return packed

    def product(self, packed: np.ndarray, x: np.ndarray, n: int) -> np.ndarray:
        """y[m, n] of x[m, k]."""
        m, k = x.shape
        y = np.full((m, n), np.nan, np.float32)
        x = np.ascontiguousarray(x, np.float32)
        self._check(self.raw.mk_product(_pointer(packed), packed.nbytes, _pointer(x), m, k, _pointer(y), n))
        return y

    def append(
        self, cache: KvCache, slots: np.ndarray, positions: np.ndarray, keys: np.ndarray, values: np.ndarray
    ) -> None:
        """Keys and values [rows, kv_heads, head_size] into the cache."""
        slots, positions = slots.astype(np.int64), positions.astype(np.int64)
        width = keys[0].size if len(keys) else 0
        where = ctypes.addressof(cache), len(slots), _pointer(slots), _pointer(positions)
        what = _pointer(keys), keys.nbytes, width, _pointer(values), values.nbytes, width
        self._check(self.raw.mk_kv_append(*where, *what))

    def attend(
        self,
        cache: KvCache,
        slots: np.ndarray,
        positions: np.ndarray,
        queries: np.ndarray,
        *,
        window: int = 0,
        scale: float = 0.125,
    ) -> np.ndarray:
        """Queries and results [rows, heads, head_size]."""
        slots, positions = slots.astype(np.int64), positions.astype(np.int64)
        rows, heads, head_size = queries.shape
        out = np.full_like(queries, np.nan)
        width = heads * head_size
        where = ctypes.addressof(cache), rows, _pointer(slots), _pointer(positions)
        what = _pointer(queries), queries.nbytes, width, _pointer(out), out.nbytes, width
        self._check(self.raw.mk_attend(*where, heads, window, scale, *what))
        return out

    def counters(self) -> dict[str, dict[str, int]]:
        """Of each operator by name."""
        found = {}
        index = 0
        while (name := self.raw.mk_operator_name(index)) is not None:
            counters = Counters()
            self._check(self.raw.mk_counters_read(index, ctypes.addressof(counters)))
            found[name.decode()] = {field: int(getattr(counters, field)) for field, *_ in Counters._fields_}
            index += 1
        return found

    def reset_counters(self) -> None:
        self.raw.mk_counters_reset()

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
