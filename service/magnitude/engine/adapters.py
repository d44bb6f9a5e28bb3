"""LoRA adapters of one loaded model: their matrices, mapped, and bound to a run as plain inputs.

A graph without adapter inputs has none, and then nothing is bound. Where there are any, every run needs all of them:
those that an adapter does not change, and all of them for the base alone, get matrices of rank 0.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magnitude.engine.protocol import TensorInfo
from magnitude.errors import ModelError, RequestError
from magnitude.models.adapters import ADAPTER_FILE

_PREFIX = "lora."  # of the inputs' names, as the import's `graphs/lora.py` gives them
# The header has some hundred bytes for each matrix; a larger one is damage.
_HEADER_MAX_BYTES = 16 * 1024 * 1024

F32 = NDArray[np.float32]


class _Adapter:
    """Matrices by input name, and the hash that keys the KV computed with them."""

    __slots__ = ("adapter_hash", "matrices")

    def __init__(self, matrices: Mapping[str, F32], adapter_hash: str) -> None:
        self.matrices = matrices
        self.adapter_hash = adapter_hash


class AdapterSet:
    """The adapters that runs of one session may use. `inputs` are the session's."""

    def __init__(self, model: str, inputs: Sequence[TensorInfo]) -> None:
        self._model = model
        self._inputs = {info.name: info for info in inputs if info.name.startswith(_PREFIX)}
        none = {
            name: np.zeros([max(size, 0) for size in info.shape], np.float32) for name, info in self._inputs.items()
        }
        self._adapters = {"": _Adapter(none, "")}
        # What each binding points into; an adapter's memory stays mapped for as long as any binding does.
        self._bound: weakref.WeakKeyDictionary[Any, _Adapter] = weakref.WeakKeyDictionary()

    @property
    def input_names(self) -> frozenset[str]:
        """Inputs of the graph that `bind` sees to."""
        return frozenset(self._inputs)

    def __contains__(self, name: str) -> bool:
        """Whether `name` is loaded; "" (the base alone) always is."""
        return name in self._adapters

    def hash_of(self, name: str) -> str:
        """The hash of a loaded adapter; "" for the base alone."""
        return self._adapters[name].adapter_hash

    def load(self, name: str, folder: Path, adapter_hash: str) -> None:
        """Map the adapter in `folder`. Raises `ModelError` where it is not the one of that hash, or does not fit."""
        if name and name in self._adapters and self._adapters[name].adapter_hash == adapter_hash:
            return  # a spare engine has loaded what the service then asks it to load
        if not name or name in self._adapters:
            raise RequestError(f"adapter {name!r} of {self._model} is already loaded", code="adapter_already_loaded")
        if not self._inputs:
            raise ModelError(
                f"model {self._model} runs on a graph without adapter inputs",
                code="adapter_graph_missing",
                hint="Restart the service; if it stays so, import the model again with --lora",
            )
        path = folder / ADAPTER_FILE
        matrices = _mapped(path, adapter_hash)
        for input_name, matrix in matrices.items():
            info = self._inputs.get(input_name)
            wanted = None if info is None else info.shape
            if wanted is None or any(size not in (-1, have) for size, have in zip(wanted, matrix.shape, strict=True)):
                raise _unusable(path, f"{input_name} {list(matrix.shape)} does not fit the model {self._model}")
        self._adapters[name] = _Adapter({**self._adapters[""].matrices, **matrices}, adapter_hash)

    def unload(self, name: str) -> None:
        """Forget the adapter. No run may name it any more; bindings that still point to it keep its memory."""
        if not name or name not in self._adapters:
            raise RequestError(f"adapter {name!r} of {self._model} is not loaded", code="adapter_not_loaded")
        del self._adapters[name]

    def bind(self, binding: Any, name: str) -> None:
        """Let the next run of `binding` (an `IOBinding`) compute with the adapter `name`, or with none for "".

        Binds only what is not bound yet: about 5 µs for each input that changes.
        """
        adapter = self._adapters[name]
        before = self._bound.pop(binding, None)
        if before is not adapter:
            for input_name, matrix in adapter.matrices.items():
                if before is None or before.matrices[input_name] is not matrix:
                    binding.bind_input(input_name, "cpu", 0, np.float32, matrix.shape, matrix.ctypes.data)
        self._bound[binding] = adapter


def _unusable(path: Path, what: str) -> ModelError:
    return ModelError(
        f"{path}: {what}", code="adapter_invalid", hint="Remove the adapter and import it again", param=str(path)
    )


def _mapped(path: Path, adapter_hash: str) -> dict[str, F32]:
    """The matrices in a safetensors file of our own, mapped read-only."""
    try:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != adapter_hash:
                raise _unusable(path, "the content has changed since the import (sha256 differs)")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        size = int.from_bytes(data[:8], "little")
        if size > min(len(data) - 8, _HEADER_MAX_BYTES):
            raise _unusable(path, "its header is damaged")
        header = json.loads(data[8 : 8 + size])
        matrices = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            start, _ = entry["data_offsets"]
            rows, columns = entry["shape"]
            if entry["dtype"] != "F32":
                raise _unusable(path, f"{name} has the type {entry['dtype']}")
            values: F32 = np.frombuffer(data, "<f4", rows * columns, 8 + size + start)
            matrices[name] = values.reshape(rows, columns)
    except OSError as error:
        raise _unusable(path, f"it cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unusable(path, f"its header is damaged ({error})") from error
    return matrices
