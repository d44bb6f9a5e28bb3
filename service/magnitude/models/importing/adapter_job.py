"""The part of an adapter's import that runs in the confined child.

It reads the untrusted file, compares every pair with the base's LoRA graph, and writes the matrices as that graph
takes them: layers that share a product are put side by side in A and on B's diagonal.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from magnitude.errors import ImportFailed
from magnitude.models.adapters import ADAPTER_FILE, ADAPTER_SCHEMA_VERSION, AdapterManifest
from magnitude.models.description import ModelDescription
from magnitude.models.families import FAMILIES
from magnitude.models.graphs.lora import PREFIX, PRODUCTS, shrunk_channels
from magnitude.models.importing.order import AdapterJob, Report, versions
from magnitude.models.integrity import file_entry, files_sha256
from magnitude.models.onnx_signature import read_signature
from magnitude.models.sources.adapter import MODULES, AdapterWeights, LowRank
from magnitude.models.sources.peft import CONFIG_FILE, WEIGHTS_FILE
from magnitude.models.sources.source import refuse


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a layer's pair goes: a product's inputs, and its columns of B."""

    product: str  # the inputs' common name, `lora.N.qkv`
    columns: int  # width of what comes in
    rows: int  # width of what goes out
    first: int  # the layer's first column of B


class Base:
    """What the base's LoRA graph takes. Raises `ModelError` for a graph that is damaged."""

    def __init__(self, model: ModelDescription) -> None:
        assert model.decoder is not None and model.lora_graph_file is not None  # the parent has looked
        graph = Path(model.folder) / model.lora_graph_file
        inputs = {v.name: v.shape for v in read_signature(graph).inputs}
        self.shrunk, self.shrunk_by = shrunk_channels(graph)
        kv_rows = model.decoder.kv_heads * model.decoder.head_dim
        self.name = model.name
        self.layers = model.decoder.layers
        self.width: dict[str, int] = {}  # of each product's output
        self.places: dict[tuple[int, str], Place] = {}
        for layer in range(self.layers):
            for product, (_, modules) in PRODUCTS.items():
                name = f"{PREFIX}{layer}.{product}"
                a, b = inputs.get(f"{name}.a"), inputs.get(f"{name}.b")
                if a is None or b is None:
                    continue
                self.width[name] = b[1]
                first = 0
                for module, rows in zip(modules, _rows(product, b[1], kv_rows), strict=True):
                    place = Place(product=name, columns=a[0], rows=rows, first=first)
                    self.places[layer, module] = place
                    first += rows
        self.heads = self.places[0, "self_attn.q_proj"].rows // model.decoder.head_dim
        self.kv_heads = model.decoder.kv_heads


def _rows(product: str, width: int, kv_rows: int) -> list[int]:
    """How wide each part of a product is."""
    if product == "qkv":
        return [width - 2 * kv_rows, kv_rows, kv_rows]
    return [width // 2, width // 2] if product == "gate_up" else [width]


def check_fit(base: Base, weights: AdapterWeights) -> None:
    """Raises `ImportFailed` that names every pair that the base has no layer for, or one of another width."""
    problems = []
    for (layer, module), pair in weights.pairs.items():
        place = base.places.get((layer, module))
        if place is None:
            problems.append(f"layer {layer} {module}: the base has {base.layers} layers")
            continue
        if pair.a.shape[0] != place.columns:
            problems.append(f"layer {layer} {module}: A takes {pair.a.shape[0]} values, the base has {place.columns}")
        if pair.b.shape[1] != place.rows:
            problems.append(f"layer {layer} {module}: B gives {pair.b.shape[1]} values, the base has {place.rows}")
    refuse(
        f"The adapter does not fit {base.name}",
        problems,
        hint="It was trained for another model; import the one that its card names, and name that as the base",
    )


def packed(base: Base, pairs: Mapping[tuple[int, str], LowRank]) -> dict[str, NDArray[np.float32]]:
    """The graph's inputs by name, for products that the adapter changes: `a` `[in, rank]`, `b` `[rank, out]`."""
    members: dict[str, list[tuple[Place, LowRank]]] = {}
    for layer, module in sorted(pairs, key=lambda at: (at[0], MODULES.index(at[1]))):
        place = base.places[layer, module]
        members.setdefault(place.product, []).append((place, pairs[layer, module]))
    arrays: dict[str, NDArray[np.float32]] = {}
    for product, parts in members.items():
        b = np.zeros((sum(pair.rank for _, pair in parts), base.width[product]), np.float32)
        row = 0
        for place, pair in parts:
            b[row : row + pair.rank, place.first : place.first + place.rows] = pair.b
            row += pair.rank
        a = np.concatenate([pair.a for _, pair in parts], axis=1)
        a[base.shrunk.get(product, [])] *= np.float32(base.shrunk_by)
        arrays[f"{product}.a"] = a
        arrays[f"{product}.b"] = b
    return arrays


def run_job(job: AdapterJob, report: Report) -> AdapterManifest:
    """Writes the adapter's matrices into the staging folder. Raises `ImportFailed` or `ModelError`."""
    from safetensors.numpy import save_file

    base, source = Base(job.base), Path(job.source)
    report(0.1, "reading the adapter")
    weights = _read(job, source, base)
    check_fit(base, weights)
    report(0.5, "writing its matrices")
    target = Path(job.staging) / ADAPTER_FILE
    save_file(packed(base, weights.pairs), target, metadata={"format": "magnitude-lora"})
    report(0.8, "hashing")
    files = [source] if source.is_file() else [source / CONFIG_FILE, source / WEIGHTS_FILE]
    return AdapterManifest(
        schema=ADAPTER_SCHEMA_VERSION,
        name=job.name,
        base=job.base.name,
        base_hash=job.base.model_hash,
        source_format=job.kind,
        source_file=source.name,
        source_sha256=files_sha256(files),
        adapter=file_entry(target),
        rank=max(pair.rank for pair in weights.pairs.values()),
        modules=tuple(module for module in MODULES if any(found == module for _, found in weights.pairs)),
        layers=len({layer for layer, _ in weights.pairs}),
        parameters=sum(pair.a.size + pair.b.size for pair in weights.pairs.values()),
        notes=weights.notes,
        licence=weights.licence,
        created_s=job.created_s,
        made_with=versions(),
    )


def _read(job: AdapterJob, source: Path, base: Base) -> AdapterWeights:
    if job.kind == "peft":
        from magnitude.models.sources.peft import read_peft

        return read_peft(source)
    from magnitude.models.sources.gguf_adapter import read_gguf_adapter

    family = FAMILIES.get(job.base.family)
    if family is None:
        raise ImportFailed(f"the family {job.base.family!r} of {base.name} is not known", hint="Update Magnitude")
    return read_gguf_adapter(source, family=family, heads=base.heads, kv_heads=base.kv_heads)


def _main() -> int:
    from magnitude.models.importing.sandbox import Reporter, serve

    def run(order: bytes, reporter: Reporter) -> Any:
        return run_job(msgspec.json.decode(order, type=AdapterJob), reporter.progress)

    return serve(run)


if __name__ == "__main__":
    sys.exit(_main())
