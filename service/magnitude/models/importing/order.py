"""What an import is asked to do: the order that the parent writes and the child reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from magnitude.models.description import ModelDescription
from magnitude.models.importing.source_kind import SourceKind
from magnitude.models.tolerance import Tolerance

Report = Callable[[float, str], None]


class ImportJob(msgspec.Struct, frozen=True, kw_only=True):
    """`memory_bytes` is what the job may use for private memory; it decides whether a float reference fits."""

    kind: SourceKind
    source: str
    staging: str
    name: str
    bits: Literal[4, 8, 16] | None
    kv: Literal["float", "int8"]
    memory_bytes: int
    created_s: int
    lora: bool = False  # emit a second graph with adapters as inputs
    parent: ModelDescription | None = None  # the model is to become a variant of this one
    tolerance: Tolerance | None = None  # of the model, or of the variant; None: the usual one


class AdapterJob(msgspec.Struct, frozen=True, kw_only=True):
    """`source` is a PEFT folder or a GGUF file; `base` must have a LoRA graph."""

    kind: Literal["peft", "gguf"]
    source: str
    staging: str
    name: str
    base: ModelDescription
    created_s: int


def versions() -> dict[str, str]:
    """Versions of everything that took part, for the manifest."""
    import importlib.metadata

    from magnitude import __version__

    parts = ("onnxruntime", "onnx", "gguf", "safetensors", "tokenizers", "numpy")
    return {"magnitude": __version__, **{part: importlib.metadata.version(part) for part in parts}}
