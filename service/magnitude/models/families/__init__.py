"""Model families, one small file each.

A new family is a new file with a `FAMILY` and one line here; see `decoder.py` and `encoder.py` for what it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from magnitude.errors import ImportFailed
from magnitude.models.families import bert, llama, qwen2, qwen3
from magnitude.models.families.family import Family

FAMILIES: dict[str, Family] = {f.name: f for f in (llama.FAMILY, qwen2.FAMILY, qwen3.FAMILY, bert.FAMILY)}


def family_of_gguf(fields: Mapping[str, Any], path: Path) -> Family:
    """The family of a GGUF file by its `general.architecture`. Raises `ImportFailed` for an unknown one."""
    architecture = fields.get("general.architecture")
    for family in FAMILIES.values():
        if family.gguf_architecture is not None and family.gguf_architecture == architecture:
            return family
    known = ", ".join(f.gguf_architecture for f in FAMILIES.values() if f.gguf_architecture)
    raise ImportFailed(
        f"{path.name}: the architecture {str(architecture)[:60]!r} is not supported in GGUF",
        hint=f"Supported are {known}. A ready ONNX folder of the model can be imported as it is",
    )


def family_of_huggingface(config: Mapping[str, Any], folder: Path) -> Family:
    """The family of a folder by `architectures` in its config.json. Raises `ImportFailed` for an unknown one."""
    listed = config.get("architectures")
    names = [str(n)[:60] for n in listed] if isinstance(listed, list) else []
    for family in FAMILIES.values():
        if any(name in family.huggingface_architectures for name in names):
            return family
    known = ", ".join(name for f in FAMILIES.values() for name in f.huggingface_architectures)
    raise ImportFailed(
        f"{folder.name}: the architecture {', '.join(names) or 'of the model (none named in config.json)'} "
        "is not supported",
        hint=f"Supported are {known}. A ready ONNX folder of the model can be imported as it is",
    )
