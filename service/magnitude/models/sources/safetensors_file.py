"""Read a `.safetensors` file.

The safetensors library checks the file's header (its length, that the tensors fill the file without holes or
overlaps, that shapes and types match the lengths). Bytes are then taken from our own map, because the library's
NumPy reader has no bfloat16.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from magnitude.errors import ImportFailed
from magnitude.models.sources.gguf_header import lfs_pointer
from magnitude.models.sources.source import MAX_NAME_BYTES

FLOAT_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own limit


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor's bytes in the mapped file, and the file's own name of their type."""

    data: NDArray[np.uint8]
    dtype: str
    shape: tuple[int, ...]

    def floats(self) -> NDArray[np.float32]:
        """The values as float32. The type must be one of `FLOAT_TYPES`."""
        values = np.frombuffer(self.data, dtype=FLOAT_TYPES[self.dtype])
        if self.dtype == "BF16":  # the upper half of a float32
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32, copy=False).reshape(self.shape)


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of `path` by name, mapped. Raises `ImportFailed` for a file that is cut off or damaged."""
    size = path.stat().st_size
    if size < 8:
        raise ImportFailed(f"{path.name} is cut off: it has {size} bytes", hint="Download it again")
    data = np.memmap(path, dtype=np.uint8, mode="r")
    if data[:24].tobytes().startswith(b"version https://git-lfs"):
        message, hint = lfs_pointer(path)
        raise ImportFailed(message, hint=hint)
    header_bytes = int(data[:8].view("<u8")[0])
    if header_bytes > min(size - 8, MAX_HEADER_BYTES):
        raise ImportFailed(
            f"{path.name} is cut off or damaged: its header claims {header_bytes} bytes, the file has {size}",
            hint="Download it again and compare its size with the publisher's",
        )
    try:
        with safe_open(path, framework="np"):
            pass  # opening checks the whole header
        header = json.loads(data[8 : 8 + header_bytes].tobytes())
    except (SafetensorError, ValueError, RecursionError) as broken:
        raise ImportFailed(
            f"{path.name} is cut off or damaged: {broken}",
            hint="Download it again and compare its size with the publisher's",
        ) from None
    body = data[8 + header_bytes :]
    found: dict[str, StoredTensor] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if len(name.encode()) > MAX_NAME_BYTES:
            raise ImportFailed(f"{path.name} has a tensor name of {len(name)} letters", hint="The file is damaged")
        start, end = entry["data_offsets"]
        found[name] = StoredTensor(body[start:end], entry["dtype"], tuple(entry["shape"]))
    return found
