"""Weights from a Hugging Face folder: `config.json` and one or several `.safetensors` files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from magnitude.errors import ImportFailed
from magnitude.models.families import family_of_huggingface
from magnitude.models.sources.folder import inside, read_json
from magnitude.models.sources.safetensors_file import FLOAT_TYPES, StoredTensor, read_safetensors
from magnitude.models.sources.source import MAX_TENSORS, ArchConfig, BlockMatrix, refuse

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class HuggingFaceSource:
    """A model folder, memory-mapped. Raises `ImportFailed` where it cannot be used."""

    format: Literal["huggingface"] = "huggingface"

    def __init__(self, folder: Path):
        config = read_json(folder, "config.json")
        if not isinstance(config, dict):
            raise ImportFailed("config.json is no object", hint="Download the model folder again")
        self._folder = folder
        self._family = family_of_huggingface(config, folder)
        self._tensors: dict[str, StoredTensor] = {}
        for name in _weight_files(folder):
            for key, stored in read_safetensors(inside(folder, name)).items():
                if self._tensors.setdefault(_without_wrapper(key, self._family.kind), stored) is not stored:
                    raise ImportFailed(f"two weight files hold {key}", hint="Remove files that are not in the index")
            if len(self._tensors) > MAX_TENSORS:
                raise ImportFailed(
                    f"the folder has more than {MAX_TENSORS} tensors", hint="No such model is supported"
                )
        self._config = self._family.from_huggingface(config, folder)
        refuse(
            f"{folder.name}: tensors of a type that cannot be read",
            (f"{n} ({self._tensors[n].dtype})" for n in self._needed() if self._tensors[n].dtype not in FLOAT_TYPES),
            hint="Take the model in F32, F16 or BF16, or as a GGUF file",
        )
        self._metadata = _metadata(config, folder)

    def _needed(self) -> list[str]:
        return [name for name in self._family.tensors(self._config) if name in self._tensors]

    @property
    def family(self) -> str:
        return self._family.name

    @property
    def config(self) -> ArchConfig:
        return self._config

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._metadata

    def tensor_names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensor(name).shape

    def stored_as(self, name: str) -> str:
        return self._tensor(name).dtype

    def floats(self, name: str) -> NDArray[np.float32]:
        return self._tensor(name).floats()

    def blocks(self, name: str) -> BlockMatrix | None:
        return None

    def _tensor(self, name: str) -> StoredTensor:
        if name not in self._tensors:
            raise ImportFailed(f"{self._folder.name} has no tensor {name}", hint="The weight files are incomplete")
        return self._tensors[name]


def _without_wrapper(name: str, kind: str) -> str:
    return name.removeprefix("bert.") if kind == "encoder" else name


def _weight_files(folder: Path) -> list[str]:
    if (folder / _INDEX).exists():
        index = read_json(folder, _INDEX)
        table = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
            raise ImportFailed(f"{_INDEX} has no usable weight_map", hint="Download the index again")
        return sorted(set(table.values()))
    if (folder / _SINGLE).exists():
        return [_SINGLE]
    other = sorted(p.name for p in folder.glob("*.bin"))
    hint = "Pickled weights (.bin) are not read: they can run code. " if other else ""
    raise ImportFailed(
        f"{folder.name} has no {_SINGLE}", hint=f"{hint}Take the model's safetensors files, or a GGUF file of it"
    )


def _metadata(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    settings: Mapping[str, Any] = config
    if (folder / "generation_config.json").exists():
        generation = read_json(folder, "generation_config.json")
        settings = {**config, **generation} if isinstance(generation, dict) else config
    eos = settings.get("eos_token_id")
    template: Any = None
    if (folder / "chat_template.jinja").exists():
        template = inside(folder, "chat_template.jinja").read_text(encoding="utf-8")
    elif (folder / "tokenizer_config.json").exists():
        tokenizer = read_json(folder, "tokenizer_config.json")
        template = tokenizer.get("chat_template") if isinstance(tokenizer, dict) else None
    return {
        "name": folder.resolve().name,
        "licence": _licence(folder),
        "bos": settings.get("bos_token_id"),
        "eos": [] if eos is None else list(eos) if isinstance(eos, list) else [eos],
        "pad": settings.get("pad_token_id"),
        "chat_template": template,
    }


def _licence(folder: Path) -> str:
    """The `license:` line of the model card's front matter, if there is one."""
    if not (folder / "README.md").exists():
        return ""
    lines = inside(folder, "README.md").read_text(encoding="utf-8", errors="replace")[:65536].splitlines()
    if not lines or lines[0].strip() != "---":
        return ""
    for line in lines[1:]:
        if line.strip() == "---":
            break
        if line.startswith("license:"):
            return line.removeprefix("license:").strip().strip("\"'")
    return ""
