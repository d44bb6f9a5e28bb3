"""Read and check the header of a GGUF file.

The format is described in the ggml project (docs/gguf.md): a magic, a version, two counts, key-value pairs, a
table of tensors, then aligned data. `gguf.GGUFReader` reads the same, but it trusts every length in the file (a
forged count makes it loop without end) and builds a NumPy view for each token: 3.5 s and 190 MB for a vocabulary
of 49,152. So the header is read here with every length checked, and the block formats are left to `gguf`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from magnitude.errors import ImportFailed
from magnitude.models.sources.source import MAX_NAME_BYTES, MAX_TENSORS

MAX_FIELDS = 4096
MAX_ARRAY_ITEMS = 4_000_000  # the largest vocabularies have some 260,000 tokens and about as many merges
MAX_STRING_BYTES = 16 * 1024 * 1024  # chat templates are tens of KB
MAX_DIMENSIONS = 4  # ggml's own limit
MAX_ELEMENTS = 1 << 40
SUPPORTED_VERSIONS = (2, 3)  # version 1 had 32-bit lengths and is long gone

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_HINT_AGAIN = "Download the file again and compare its size and checksum with the publisher's"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One row of the tensor table. `shape` is in C order, `offset` counts from the start of the file."""

    name: str
    type: gguf.GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    fields: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


class _Cursor:
    """Reads forward through a file's bytes and never past their end."""

    def __init__(self, data: NDArray[np.uint8], path: Path):
        self._data = data
        self._path = path
        self.at = 0

    def fail(self, what: str) -> ImportFailed:
        return ImportFailed(f"{self._path.name}: {what} (at byte {self.at})", hint=_HINT_AGAIN)

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self._data):
            raise self.fail(f"the file ends inside its header: it has {len(self._data)} bytes, {end} are needed")
        piece = self._data[self.at : end].tobytes()
        self.at = end
        return piece

    def scalar(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self, limit: int) -> str:
        size = self.scalar("<Q")
        if size > limit:
            raise self.fail(f"a string claims {size} bytes, at most {limit} are accepted")
        return self.take(size).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string(MAX_STRING_BYTES)
        if kind == _ARRAY:
            return self.array()
        if kind not in _SCALARS:
            raise self.fail(f"unknown metadata type {kind}")
        return self.scalar(_SCALARS[kind])

    def array(self) -> list[Any]:
        kind, count = self.scalar("<I"), self.scalar("<Q")
        if count > MAX_ARRAY_ITEMS:
            raise self.fail(f"an array claims {count} items, at most {MAX_ARRAY_ITEMS} are accepted")
        if kind == _STRING:
            return [self.string(MAX_STRING_BYTES) for _ in range(count)]
        if kind not in _SCALARS:
            raise self.fail(f"an array has items of the unknown type {kind}")
        item = np.dtype(_SCALARS[kind])
        values: list[Any] = np.frombuffer(self.take(count * item.itemsize), item).tolist()
        return values


def read_header(data: NDArray[np.uint8], path: Path) -> GgufHeader:
    """Read fields and tensor table of the GGUF file mapped as `data`.

    Raises `ImportFailed` for a file that is no GGUF file, is cut off, or whose counts, lengths or offsets do not
    fit into it. Tensor types that `gguf` does not know are all named in one error.
    """
    cursor = _Cursor(data, path)
    magic = cursor.take(4) if len(data) >= 4 else b""
    if magic != b"GGUF":
        raise ImportFailed(*_not_gguf(data, path)[:1], hint=_not_gguf(data, path)[1])
    version = cursor.scalar("<I")
    if version not in SUPPORTED_VERSIONS:
        raise ImportFailed(
            f"{path.name}: GGUF version {version} cannot be read, only {SUPPORTED_VERSIONS[0]} and "
            f"{SUPPORTED_VERSIONS[1]} (little-endian)",
            hint="Convert the model again with a current converter",
        )
    tensor_count, field_count = cursor.scalar("<Q"), cursor.scalar("<Q")
    if tensor_count > MAX_TENSORS or field_count > MAX_FIELDS:
        raise cursor.fail(f"the header claims {tensor_count} tensors and {field_count} fields")
    fields: dict[str, Any] = {}
    for _ in range(field_count):
        key = cursor.string(MAX_NAME_BYTES)
        if key in fields:
            raise cursor.fail(f"the field {key!r} occurs twice")
        fields[key] = cursor.value(cursor.scalar("<I"))
    return GgufHeader(fields, _read_tensors(cursor, tensor_count, fields, len(data), path))


def _read_tensors(
    cursor: _Cursor, count: int, fields: Mapping[str, Any], file_bytes: int, path: Path
) -> dict[str, GgufTensor]:
    alignment = fields.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 8 <= alignment <= 65536 or alignment & (alignment - 1):
        raise cursor.fail(f"general.alignment is {alignment!r}, not a sensible power of two")
    rows: list[tuple[str, tuple[int, ...], int, int]] = []
    for _ in range(count):
        name = cursor.string(MAX_NAME_BYTES)
        dimensions = cursor.scalar("<I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise cursor.fail(f"tensor {name!r} claims {dimensions} dimensions")
        shape = tuple(reversed([cursor.scalar("<Q") for _ in range(dimensions)]))
        rows.append((name, shape, cursor.scalar("<I"), cursor.scalar("<Q")))
    start = -(-cursor.at // alignment) * alignment
    known = {int(kind) for kind in gguf.GGMLQuantizationType}
    strange = [f"{name} (type {kind})" for name, _, kind, _ in rows if kind not in known]
    if strange:
        raise ImportFailed(
            f"{path.name}: unknown tensor types: {', '.join(strange)}",
            hint="Requantise the model to one of F16, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K",
        )
    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in rows:
        elements = 1
        for size in shape:
            elements *= size
        if not 0 < elements <= MAX_ELEMENTS:
            raise cursor.fail(f"tensor {name!r} has the impossible shape {list(shape)}")
        if name in tensors:
            raise cursor.fail(f"tensor {name!r} occurs twice")
        kind_type = gguf.GGMLQuantizationType(kind)
        block_items, block_bytes = gguf.GGML_QUANT_SIZES[kind_type]
        if shape[-1] % block_items:
            raise cursor.fail(
                f"tensor {name!r} has rows of {shape[-1]}, no multiple of {kind_type.name}'s {block_items}"
            )
        size_bytes = elements // block_items * block_bytes
        if offset % alignment or start + offset + size_bytes > file_bytes:
            raise ImportFailed(
                f"{path.name}: tensor {name!r} ({size_bytes} bytes at {start + offset}) does not lie inside the "
                f"file of {file_bytes} bytes: the file is cut off or damaged",
                hint=_HINT_AGAIN,
            )
        tensors[name] = GgufTensor(name, kind_type, shape, start + offset, size_bytes)
    return tensors


def _not_gguf(data: NDArray[np.uint8], path: Path) -> tuple[str, str]:
    if data[:24].tobytes().startswith(b"version https://git-lfs"):
        return lfs_pointer(path)
    return f"{path.name} is not a GGUF file: it does not start with 'GGUF'", "Name a .gguf file or a model folder"


def lfs_pointer(path: Path) -> tuple[str, str]:
    """Message and hint for a file that holds only a Git LFS pointer in place of the weights."""
    return (
        f"{path.name} holds a Git LFS pointer, not the weights",
        "Run 'git lfs pull' in the folder that it came from, or download the file itself",
    )
