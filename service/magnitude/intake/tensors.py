"""Tensors of the Open Inference Protocol in JSON, and what the engine takes.

No NumPy here: the service only moves numbers, and the library would add 20 MB to a process of 60.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any

from magnitude.engine.protocol import Tensor, TensorInfo
from magnitude.errors import EngineError, RequestError
from magnitude.intake.fields import Fields

# The protocol's names, NumPy's names, and the codes of `array`; FP16 has none there.
_TYPES: dict[str, tuple[str, str]] = {
    "BOOL": ("bool", "B"),
    "UINT8": ("uint8", "B"),
    "UINT16": ("uint16", "H"),
    "UINT32": ("uint32", "I"),
    "UINT64": ("uint64", "Q"),
    "INT8": ("int8", "b"),
    "INT16": ("int16", "h"),
    "INT32": ("int32", "i"),
    "INT64": ("int64", "q"),
    "FP16": ("float16", "e"),
    "FP32": ("float32", "f"),
    "FP64": ("float64", "d"),
}
_OF_NUMPY = {numpy: name for name, (numpy, _) in _TYPES.items()}
_MAX_RANK = 16
_MAX_ELEMENTS = 1 << 27  # of all of a tensor; the request's size is bounded anyway, an empty shape product is not


def protocol_type(dtype: str) -> str:
    """The protocol's name for NumPy's `dtype`."""
    return _OF_NUMPY.get(dtype, "BYTES")


def metadata(info: TensorInfo) -> dict[str, Any]:
    return {"name": info.name, "datatype": protocol_type(info.dtype), "shape": list(info.shape)}


def parse_tensor(fields: Fields, known: Sequence[TensorInfo]) -> Tensor:
    """One input of a request, checked against the model's own inputs. Raises `RequestError`."""
    name = fields.needed_text("name")
    info = next((i for i in known if i.name == name), None)
    if info is None:
        raise fields.wrong("name", f"is {name[:64]!r}; the model's inputs are {', '.join(i.name for i in known)}")
    datatype = fields.choice("datatype", list(_TYPES), "")
    dtype, code = _TYPES[datatype]
    if dtype != info.dtype:
        raise fields.wrong("datatype", f"is {datatype}; {name} takes {protocol_type(info.dtype)}")
    shape = _shape(fields, info)
    values = _flat(fields, shape)
    if len(values) != math.prod(shape):
        raise fields.wrong("data", f"holds {len(values)} values; the shape {list(shape)} has {math.prod(shape)}")
    return Tensor(name=name, dtype=dtype, shape=shape, data=_pack(fields, values, datatype, code))


def tensor_json(tensor: Tensor) -> dict[str, Any]:
    """One output of an answer, with flat data."""
    datatype = protocol_type(tensor.dtype)
    if datatype == "BYTES":
        raise EngineError(
            f"The output {tensor.name} has the type {tensor.dtype}, which cannot be sent",
            hint="Name the outputs that you need in `outputs`.",
        )
    code = _TYPES[datatype][1]
    data: list[Any]
    if code == "e":
        data = list(struct.unpack(f"<{len(tensor.data) // 2}e", tensor.data))
    else:
        values = array(code, tensor.data)
        if sys.byteorder == "big":
            values.byteswap()
        data = [bool(v) for v in values] if datatype == "BOOL" else values.tolist()
    return {"name": tensor.name, "datatype": datatype, "shape": list(tensor.shape), "data": data}


def _shape(fields: Fields, info: TensorInfo) -> tuple[int, ...]:
    given = fields.items("shape", max_items=_MAX_RANK)
    if not fields.has("shape"):
        raise fields.wrong("shape", "is missing")
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in given):
        raise fields.wrong("shape", "must hold whole numbers from 0 on")
    fits = len(given) == len(info.shape) and all(
        want in (-1, have) for have, want in zip(given, info.shape, strict=True)
    )
    if not fits:
        wanted = [n if n >= 0 else "any" for n in info.shape]
        raise fields.wrong("shape", f"is {given}; {info.name} takes {wanted}")
    if math.prod(given) > _MAX_ELEMENTS:
        raise fields.wrong("shape", f"has {math.prod(given)} elements, at most {_MAX_ELEMENTS} are allowed")
    return tuple(given)


def _flat(fields: Fields, shape: tuple[int, ...]) -> list[Any]:
    """Data flat, or nested as the shape says (then every level must have the right length)."""
    if not isinstance(fields.raw("data"), list):
        raise fields.wrong("data", "must be a list")
    level: list[Any] = fields.raw("data")
    if not level or not isinstance(level[0], list):
        return level
    level = [level]
    for depth, length in enumerate(shape):
        if not all(isinstance(row, list) and len(row) == length for row in level):
            raise fields.wrong("data", f"does not have {length} entries everywhere at nesting level {depth}")
        level = [value for row in level for value in row]
    return level


def _pack(fields: Fields, values: list[Any], datatype: str, code: str) -> bytes:
    wanted: tuple[type, ...] = (bool,) if datatype == "BOOL" else (int, float) if code in "efd" else (int,)
    for value in values:
        if not isinstance(value, wanted) or (isinstance(value, bool) and datatype != "BOOL"):
            raise fields.wrong("data", f"holds something that is no {datatype}")
    try:
        if code == "e":
            return struct.pack(f"<{len(values)}e", *values)
        packed = array(code, values)
    except (OverflowError, struct.error):
        raise fields.wrong("data", f"holds a number beyond {datatype}") from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def missing_inputs(given: Sequence[Tensor], known: Sequence[TensorInfo]) -> None:
    """Raises `RequestError` when an input is missing or given twice."""
    names = [t.name for t in given]
    missing = [i.name for i in known if i.name not in names]
    twice = sorted({n for n in names if names.count(n) > 1})
    if missing or twice:
        what = f"lacks {', '.join(missing)}" if missing else f"holds {', '.join(twice)} twice"
        raise RequestError(f"inputs {what}", param="inputs", code="invalid_value")
