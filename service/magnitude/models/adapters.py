"""LoRA adapters on disk: which a base model has, what they are called, and what keys their KV.

An adapter belongs to one import of one base and lies inside its folder, `BASE/adapters/NAME/`: `adapter.json` and the
matrices as the base's LoRA graph takes them (`adapter.safetensors`). Requests name it `BASE:NAME`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from magnitude.errors import MagnitudeError, ModelError, ModelNotFound
from magnitude.models.description import ModelDescription
from magnitude.models.integrity import file_sha256
from magnitude.models.manifest import FileEntry
from magnitude.models.untrusted import CONFIG_MAX_BYTES, read_capped
from magnitude.persist import write_atomic

ADAPTERS_FOLDER = "adapters"
ADAPTER_MANIFEST_FILE = "adapter.json"
ADAPTER_FILE = "adapter.safetensors"
ADAPTER_SCHEMA_VERSION = 1
SEPARATOR = ":"  # no model or adapter name holds one


class AdapterManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known of an imported adapter. `rank` is the highest of any layer's."""

    schema: int
    name: str
    base: str  # the base's name at the import, for people
    base_hash: str  # model hash of the base: the adapter fits this import of it and no other
    source_format: Literal["peft", "gguf"]
    source_file: str
    source_sha256: str
    adapter: FileEntry
    rank: int
    modules: tuple[str, ...]
    layers: int  # layers of the base that it changes
    parameters: int
    notes: tuple[str, ...] = ()
    licence: str = ""
    created_s: int = 0
    made_with: dict[str, str] = {}


class AdapterDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter as service and engine work with it. `folder` is absolute."""

    name: str
    base: str  # name of the model that it belongs to
    folder: str
    adapter_hash: str  # sha256 of its matrices: with the base's hash it keys everything that holds KV
    size_bytes: int
    rank: int
    modules: tuple[str, ...]
    layers: int
    licence: str = ""
    created_s: int = 0

    @property
    def full_name(self) -> str:
        return f"{self.base}{SEPARATOR}{self.name}"


class BrokenAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that looks like an adapter but cannot be used, and why."""

    name: str
    base: str
    folder: str
    message: str
    hint: str = ""


def split_name(name: str) -> tuple[str, str]:
    """Model and adapter of `MODEL:ADAPTER`; the adapter is "" where none is named."""
    model, _, adapter = name.partition(SEPARATOR)
    return model, adapter


def resolve_name(
    name: str, *, models: Iterable[str], adapters: Iterable[AdapterDescription], default: str
) -> tuple[str, str]:
    """Model and adapter that a request's `name` means, aliases already replaced.

    `MODEL`, `MODEL:ADAPTER`, or `ADAPTER` alone where only one model has one of that name; "" and "default" stand for
    `default`, also before a colon. An unknown model is returned as it is named, with no adapter. Raises
    `ModelNotFound` for an adapter that the model does not have or that several have.
    """
    known, found = set(models), list(adapters)
    if name in known:
        return name, ""
    model, adapter = split_name(name)
    if model in {"", "default"}:
        model = default
    if not adapter:
        owners = [entry.base for entry in found if entry.name == model] if model not in known else []
        if len(owners) > 1:
            raise ModelNotFound(
                f"several models have an adapter {model!r}",
                param="model",
                hint=f"Name one of {', '.join(f'{owner}{SEPARATOR}{model}' for owner in owners)}",
            )
        return (owners[0], model) if owners else (model, "")
    if model in known and not any((entry.base, entry.name) == (model, adapter) for entry in found):
        own = ", ".join(entry.name for entry in found if entry.base == model) or "none"
        raise ModelNotFound(
            f"the model {model!r} has no adapter {adapter!r}",
            param="model",
            hint=f"Its adapters: {own}. One that was imported since is there after a restart of the service",
        )
    return model, adapter


def kv_hash(model_hash: str, adapter_hash: str) -> str:
    """The model hash for everything that holds KV: keys and values computed with an adapter are of no use without
    it. `adapter_hash` "" is the base alone."""
    if not adapter_hash:
        return model_hash
    return hashlib.sha256(f"{model_hash}+{adapter_hash}".encode()).hexdigest()


def scan_adapters(model: ModelDescription) -> list[AdapterDescription | BrokenAdapter]:
    """Every adapter in the model's folder by name; broken ones are reported in their place."""
    try:
        folders = sorted(p for p in (Path(model.folder) / ADAPTERS_FOLDER).iterdir() if not p.name.startswith("."))
    except OSError:
        return []
    found: list[AdapterDescription | BrokenAdapter] = []
    for folder in folders:
        try:
            found.append(open_adapter(folder, model))
        except MagnitudeError as error:
            found.append(
                BrokenAdapter(
                    name=folder.name, base=model.name, folder=str(folder), message=error.message, hint=error.hint
                )
            )
    return found


def usable_adapters(model: ModelDescription) -> tuple[AdapterDescription, ...]:
    """The adapters that `model` can be served with: none without a LoRA graph."""
    if model.lora_graph_file is None:
        return ()
    return tuple(entry for entry in scan_adapters(model) if isinstance(entry, AdapterDescription))


def with_adapters(model: ModelDescription) -> tuple[ModelDescription, tuple[AdapterDescription, ...]]:
    """The model as it is to be served, and its adapters.

    With any adapter, everything runs through the LoRA graph, the base included: a second session over the plain
    graph would hold the packed weights a second time. Without one the plain graph serves.
    """
    adapters = usable_adapters(model)
    if not adapters or model.lora_graph_file is None:
        return model, ()
    # Plans have no inputs for adapters.
    return msgspec.structs.replace(model, graph_file=model.lora_graph_file, graphs=(), kernel_graphs=()), adapters


def open_adapter(folder: Path, model: ModelDescription) -> AdapterDescription:
    """Describe the adapter in `folder` and compare its file's size. Raises `ModelError`."""
    manifest = read_adapter_manifest(folder)
    again = f"Import it again: `magnitude rm {model.name}{SEPARATOR}{folder.name}`, then `magnitude import`"
    if manifest.base_hash != model.model_hash:
        raise ModelError(
            f"{folder}: the adapter was made for another import of {model.name}", hint=again, param=str(folder)
        )
    path = folder / ADAPTER_FILE
    try:
        size_bytes = path.stat().st_size
    except OSError as error:
        raise ModelError(
            f"{path}: the file cannot be read ({error.strerror})", hint=again, param=str(path)
        ) from error
    if size_bytes != manifest.adapter.size_bytes:
        raise ModelError(
            f"{path}: the file has {size_bytes} of {manifest.adapter.size_bytes} bytes", hint=again, param=str(path)
        )
    return AdapterDescription(
        name=folder.name,
        base=model.name,
        folder=str(folder.absolute()),
        adapter_hash=manifest.adapter.sha256,
        size_bytes=size_bytes,
        rank=manifest.rank,
        modules=manifest.modules,
        layers=manifest.layers,
        licence=manifest.licence,
        created_s=manifest.created_s,
    )


def find_adapter(model: ModelDescription, name: str) -> Path:
    """The folder of the adapter `name` of `model`. Raises `ModelError`."""
    place = Path(model.folder) / ADAPTERS_FOLDER
    folder = place / name
    if not name or Path(name).name != name or name.startswith(".") or not folder.is_dir():
        known = ", ".join(entry.name for entry in scan_adapters(model)) or "none yet"
        raise ModelError(
            f"the model {model.name!r} has no adapter {name!r}", hint=f"Adapters of it: {known}", param=name
        )
    return folder


def verify_adapter(adapter: AdapterDescription) -> None:
    """Compare the content of the adapter's file with its hash. Raises `ModelError`."""
    path = Path(adapter.folder) / ADAPTER_FILE
    if file_sha256(path) != adapter.adapter_hash:
        raise ModelError(
            f"{path}: the content has changed since the import (sha256 differs)",
            hint=f"Run `magnitude rm {adapter.full_name}` and import it again",
            param=str(path),
        )


class _SchemaOnly(msgspec.Struct):
    schema: int


def read_adapter_manifest(folder: Path) -> AdapterManifest:
    """Raises `ModelError` for a missing, damaged or newer manifest."""
    path = folder / ADAPTER_MANIFEST_FILE
    data = read_capped(path, CONFIG_MAX_BYTES, what="adapter manifest")
    try:
        schema = msgspec.json.decode(data, type=_SchemaOnly).schema
        if schema == ADAPTER_SCHEMA_VERSION:
            return msgspec.json.decode(data, type=AdapterManifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{path}: the manifest is torn or not ours ({error})", hint="Import the adapter again", param=str(path)
        ) from error
    raise ModelError(
        f"{path}: schema {schema}, but this version reads {ADAPTER_SCHEMA_VERSION}",
        hint="Update Magnitude, or import the adapter again",
        param=str(path),
    )


def write_adapter_manifest(folder: Path, manifest: AdapterManifest) -> None:
    write_atomic(folder / ADAPTER_MANIFEST_FILE, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
