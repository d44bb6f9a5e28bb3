"""Inputs, outputs and versions of an ONNX file, without the onnx package and without reading its weights.

The service uses this for folders that it did not import itself. Only the few protobuf fields named below are
looked at (onnx.proto3: ModelProto, GraphProto, ValueInfoProto, TypeProto, TensorShapeProto, OperatorSetIdProto);
everything else, weights above all, is stepped over in a read-only mapping.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import msgspec

from magnitude.errors import ModelError
from magnitude.models.untrusted import LFS_PREFIX

# onnx.proto3, TensorProto.DataType; names are NumPy's.
ELEMENT_TYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "string",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
}

# Steps in one file: some 20 for each node and weight; the largest exported graphs have tens of thousands of nodes.
_MOST_STEPS = 5_000_000

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """One input or output. A free dimension is -1; `shape` None means that even the rank is free."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """`inputs` are those that a caller must give: weights listed among a graph's inputs are left out."""

    ir_version: int
    opsets: dict[str, int]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


class _Broken(Exception):
    pass


class _Reader:
    """Protobuf wire format over a mapping."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._steps = 0

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end:
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
            if shift > 63:
                break
        raise _Broken("a number does not end")

    def fields(self, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """(field, wire type, start, end) of each field between `at` and `end`; for numbers start is the value."""
        while at < end:
            self._steps += 1
            if self._steps > _MOST_STEPS:
                raise _Broken("it has too many fields")
            key, at = self._varint(at, end)
            field, wire = key >> 3, key & 7
            if wire == _VARINT:
                value, at = self._varint(at, end)
                yield field, wire, value, at
                continue
            if wire == _BYTES:
                size, at = self._varint(at, end)
            elif wire in (_FIXED32, _FIXED64):
                size = 4 if wire == _FIXED32 else 8
            else:
                raise _Broken(f"wire type {wire} is none of protobuf's")
            if size > end - at:
                raise _Broken("it is cut off")
            yield field, wire, at, at + size
            at += size

    def text(self, start: int, end: int) -> str:
        if end - start > 4096:
            raise _Broken("a name has more than 4096 bytes")
        return self._data[start:end].decode("utf-8", errors="replace")


def read_signature(path: Path) -> Signature:
    """Raises `ModelError` for a file that is missing, empty, cut off, or not ONNX at all."""
    try:
        with path.open("rb") as file:
            if file.read(len(LFS_PREFIX)) == LFS_PREFIX:
                raise ModelError(
                    f"{path}: this is a Git LFS pointer, not the graph itself",
                    hint="Run `git lfs pull` in the repository it came from, or download the file directly",
                    param=str(path),
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _model(_Reader(data), len(data))
    except _Broken as why:
        raise ModelError(
            f"{path}: this is not a whole ONNX graph: {why}",
            hint="The file is cut off or damaged; check its sha256 or fetch it again",
            param=str(path),
        ) from why
    except (OSError, ValueError) as error:  # mmap refuses an empty file with ValueError
        missing = isinstance(error, FileNotFoundError)
        raise ModelError(
            f"{path}: the graph is missing" if missing else f"{path}: the graph is empty or cannot be read ({error})",
            hint="Check the path, or fetch the model again",
            param=str(path),
        ) from error


def _model(reader: _Reader, size: int) -> Signature:
    ir_version = 0
    opsets: dict[str, int] = {}
    graph: tuple[int, int] | None = None
    for field, wire, start, end in reader.fields(0, size):
        if (field, wire) == (1, _VARINT):
            ir_version = start
        elif (field, wire) == (8, _BYTES):
            domain, version = "", 0
            for inner, kind, a, b in reader.fields(start, end):
                if (inner, kind) == (1, _BYTES):
                    domain = reader.text(a, b)
                elif (inner, kind) == (2, _VARINT):
                    version = a
            opsets[domain] = version
        elif (field, wire) == (7, _BYTES):
            graph = (start, end)
    if graph is None:
        raise _Broken("no graph is in it")
    inputs: list[Value] = []
    outputs: list[Value] = []
    weights: set[str] = set()
    for field, wire, start, end in reader.fields(*graph):
        if wire != _BYTES:
            continue
        if field == 11:
            inputs.append(_value(reader, start, end))
        elif field == 12:
            outputs.append(_value(reader, start, end))
        elif field == 5:
            weights.add(_weight_name(reader, start, end))
    given = tuple(value for value in inputs if value.name not in weights)
    return Signature(ir_version=ir_version, opsets=opsets, inputs=given, outputs=tuple(outputs))


def _weight_name(reader: _Reader, start: int, end: int) -> str:
    for field, wire, a, b in reader.fields(start, end):
        if (field, wire) == (8, _BYTES):  # TensorProto.name
            return reader.text(a, b)
    return ""


def _value(reader: _Reader, start: int, end: int) -> Value:
    name, dtype, shape = "", "unknown", None
    for field, wire, a, b in reader.fields(start, end):
        if (field, wire) == (1, _BYTES):
            name = reader.text(a, b)
        elif (field, wire) == (2, _BYTES):
            for kind, inner_wire, c, d in reader.fields(a, b):
                if (kind, inner_wire) == (1, _BYTES):  # TypeProto.tensor_type
                    dtype, shape = _tensor_type(reader, c, d)
    return Value(name=name, dtype=dtype, shape=shape)


def _tensor_type(reader: _Reader, start: int, end: int) -> tuple[str, tuple[int, ...] | None]:
    dtype, shape = "unknown", None
    for field, wire, a, b in reader.fields(start, end):
        if (field, wire) == (1, _VARINT):
            dtype = ELEMENT_TYPES.get(a, "unknown")
        elif (field, wire) == (2, _BYTES):
            dimensions = [(c, d) for inner, kind, c, d in reader.fields(a, b) if (inner, kind) == (1, _BYTES)]
            shape = tuple(_dimension(reader, c, d) for c, d in dimensions)
    return dtype, shape


def _dimension(reader: _Reader, start: int, end: int) -> int:
    for field, wire, value, _ in reader.fields(start, end):
        if (field, wire) == (1, _VARINT):
            return value
    return -1
