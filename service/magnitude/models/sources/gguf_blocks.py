"""GGUF's block formats: which can be expressed as blocks of codes, and their dequantisation.

The layouts are ggml's (ggml-common.h). Every format below is turned into codes, scales and minima that give the
same float32 values as `gguf`'s own dequantiser, which reads everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from magnitude.models.sources.source import BlockMatrix

Bytes = NDArray[np.uint8]

_FLOATS = {Kind.F32: "<f4", Kind.F16: "<f2", Kind.F64: "<f8"}
_UNITS_PER_SUPERBLOCK = 256  # QK_K


def readable(kind: Kind) -> bool:
    """Whether `gguf` can turn this type into floats."""
    if kind in _FLOATS:
        return True
    try:
        items, size = gguf.GGML_QUANT_SIZES[kind]
        gguf.quants.dequantize(np.zeros((1, size), np.uint8), kind)
    except (NotImplementedError, KeyError, ValueError, TypeError):
        return False
    return bool(items > 0)


def dequantise(data: Bytes, kind: Kind, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """`data` as float32 of `shape`."""
    if kind in _FLOATS:
        return data.view(_FLOATS[kind]).astype(np.float32).reshape(shape)
    rows = data.reshape(*shape[:-1], -1) if len(shape) > 1 else data.reshape(1, -1)
    values = gguf.quants.dequantize(np.ascontiguousarray(rows), kind)
    return cast("NDArray[np.float32]", values.astype(np.float32, copy=False).reshape(shape))


def unpack(data: Bytes, kind: Kind, rows: int) -> BlockMatrix | None:
    """`data` as blocks, or None for a format that is not among the expressible ones."""
    reader = _READERS.get(kind)
    if reader is None:
        return None
    size = gguf.GGML_QUANT_SIZES[kind][1]
    return reader(data.reshape(rows, -1, size), kind.name)


def _half(data: Bytes) -> NDArray[np.float32]:
    """Two bytes at the end of the last axis as a float, that axis dropped."""
    return np.ascontiguousarray(data).view("<f2")[..., 0].astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """ggml's order inside a block: all low halves, then all high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _fifth_bits(words: Bytes) -> Bytes:
    """The 32 fifth bits of a Q5 block, already in place (0 or 16)."""
    bits = np.unpackbits(np.ascontiguousarray(words), axis=-1, bitorder="little")
    return np.left_shift(bits, np.uint8(4))


def _q8_0(data: Bytes, name: str) -> BlockMatrix:
    codes = (data[..., 2:].view(np.int8).astype(np.int16) + 128).astype(np.uint8)
    return BlockMatrix(codes, _half(data[..., :2]), None, 8, name)


def _q4_0(data: Bytes, name: str) -> BlockMatrix:
    return BlockMatrix(_nibbles(data[..., 2:]), _half(data[..., :2]), None, 4, name)


def _q4_1(data: Bytes, name: str) -> BlockMatrix:
    return BlockMatrix(_nibbles(data[..., 4:]), _half(data[..., :2]), _half(data[..., 2:4]), 4, name)


def _q5_0(data: Bytes, name: str) -> BlockMatrix:
    codes = _nibbles(data[..., 6:]) | _fifth_bits(data[..., 2:6])
    return BlockMatrix(codes + np.uint8(112), _half(data[..., :2]), None, 8, name)  # 112: from zero 16 to zero 128


def _q5_1(data: Bytes, name: str) -> BlockMatrix:
    codes = _nibbles(data[..., 8:]) | _fifth_bits(data[..., 4:8])
    return BlockMatrix(codes, _half(data[..., :2]), _half(data[..., 2:4]), 8, name)


def _superblock_scales(data: Bytes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scales and minima of the eight blocks of 32 in each Q4_K or Q5_K superblock, `[rows, superblocks * 8]`."""
    packed = data[..., 4:16].reshape(-1, 12)
    scale, minimum = gguf.quants.Q4_K.get_scale_min(np.ascontiguousarray(packed))
    shape = (*data.shape[:-1], 8)
    d = _half(data[..., 0:2])[..., None] * scale.reshape(shape).astype(np.float32)
    m = _half(data[..., 2:4])[..., None] * minimum.reshape(shape).astype(np.float32)
    return d.reshape(data.shape[0], -1), -m.reshape(data.shape[0], -1)


def _k_nibbles(packed: Bytes) -> Bytes:
    """128 bytes hold eight blocks of 32: each 32 bytes one block in the low and one in the high halves."""
    groups = packed.reshape(*packed.shape[:-1], 4, 32)
    return np.stack([groups & 15, groups >> 4], axis=-2).reshape(packed.shape[0], -1, 32)


def _q4_k(data: Bytes, name: str) -> BlockMatrix:
    d, m = _superblock_scales(data)
    return BlockMatrix(_k_nibbles(data[..., 16:]), d, m, 4, name)


def _q5_k(data: Bytes, name: str) -> BlockMatrix:
    d, m = _superblock_scales(data)
    high = data[..., 16:48][..., None, :] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    codes = _k_nibbles(data[..., 48:]) | np.left_shift(high, np.uint8(4)).reshape(data.shape[0], -1, 32)
    return BlockMatrix(codes, d, m, 8, name)


def _q6_k(data: Bytes, name: str) -> BlockMatrix:
    low, high = data[..., :128], data[..., 128:192]
    # Two halves of 128 weights: 64 low bytes (two nibbles) and 32 high bytes (four pairs of bits) each.
    low = low.reshape(*data.shape[:-1], 2, 1, 64) >> np.array([[0], [4]], np.uint8) & np.uint8(15)
    high = high.reshape(*data.shape[:-1], 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8) & np.uint8(3)
    codes = low.reshape(*data.shape[:-1], _UNITS_PER_SUPERBLOCK) | (
        np.left_shift(high, np.uint8(4)).reshape(*data.shape[:-1], _UNITS_PER_SUPERBLOCK)
    )
    scale = _half(data[..., 208:210])[..., None] * data[..., 192:208].view(np.int8).astype(np.float32)
    rows = data.shape[0]
    # 96: from zero 32 to zero 128
    return BlockMatrix(codes.reshape(rows, -1, 16) + np.uint8(96), scale.reshape(rows, -1), None, 8, name)


_READERS: dict[Kind, Callable[[Bytes, str], BlockMatrix]] = {
    Kind.Q8_0: _q8_0,
    Kind.Q4_0: _q4_0,
    Kind.Q4_1: _q4_1,
    Kind.Q5_0: _q5_0,
    Kind.Q5_1: _q5_1,
    Kind.Q4_K: _q4_k,
    Kind.Q5_K: _q5_k,
    Kind.Q6_K: _q6_k,
}
