"""`manifest.json`: what an import knows about the folder that it wrote.

The manifest is written last and read first: a folder without it is not one of ours. A damaged one, or one of a
newer schema, is named as such instead of being half understood.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from magnitude.errors import ModelError
from magnitude.models.description import (
    DecoderShape,
    EncoderShape,
    Kind,
    KvType,
    ModelDescription,
    SpecialTokens,
)
from magnitude.models.tolerance import Tolerance
from magnitude.models.untrusted import CONFIG_MAX_BYTES, inside, read_capped
from magnitude.persist import write_atomic

MANIFEST_FILE = "manifest.json"
SCHEMA_VERSION = 1
NEEDS_KERNELS = "kernels"  # a graph that nobody computes but our own kernels


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the folder."""

    size_bytes: int
    sha256: str


class SourceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Where the weights came from. `sha256` is over the weight files in the order of their names."""

    format: Literal["gguf", "huggingface", "genai", "onnx"]
    file: str
    sha256: str
    size_bytes: int


class TensorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """How a group of tensors is stored. `how` is `as it was`, `converted` or `quantised a second time`."""

    tensors: str
    source_format: str
    stored_format: str
    lossless: bool
    how: str = ""


class Quantisation(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to the numbers. `accuracy_level` is MatMulNBits' (4: INT8 activations, 0: float)."""

    bits: int
    groups: tuple[TensorGroup, ...] = ()
    accuracy_level: int | None = None
    accuracy_reason: str = ""
    kv_type: KvType | None = None
    kv_scales: str = ""  # where the scales of an INT8 KV cache come from


def precision_of(bits: int, kv_type: KvType | None) -> str:
    """Weights and KV in one word, as it may stand in a folder's name: "int4", "float32-kv8"."""
    weights = "float32" if bits == 16 else f"int{bits}"
    return f"{weights}-kv8" if kv_type == "int8" else weights


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one graph against a reference over the golden texts; see `golden.py` for the measures."""

    reference: str
    graph: str
    tokens: int
    top1_agreement: float | None = None
    kl_nats: float | None = None
    cosine: float | None = None
    perplexity: float | None = None  # of the same texts, by the graph and by its reference
    reference_perplexity: float | None = None
    passed: bool


class GraphPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Another graph over the same weights that may stand for the serving graph, and how near its logits were to that
    graph's over the golden texts. `equal`: to the bit. `plan` says in words what differs, `needs` what must be there
    beside ONNX Runtime (`NEEDS_KERNELS`; "": nothing). One that is not `verified` is not used: an import that could
    not compare it has no figures of it."""

    file: str
    plan: str
    needs: str = ""
    equal: bool
    largest_difference: float
    top1_agreement: float
    kl_nats: float
    verified: bool


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known of an imported model.

    Unknown fields are passed over, so that a version that does not know a new one can still serve the folder; what
    an older version would misread raises `SCHEMA_VERSION`.
    """

    schema: int
    name: str
    kind: Kind
    family: str
    graph_file: str
    source: SourceEntry
    files: dict[str, FileEntry]
    weight_bytes: int
    model_hash: str
    special: SpecialTokens = SpecialTokens()
    decoder: DecoderShape | None = None
    encoder: EncoderShape | None = None
    tokenizer_file: str | None = None
    tokens: int | None = None  # ids of the tokenizer; the logits may be wider
    chat_template_file: str | None = None
    fallback_graph_file: str | None = None
    lora_graph_file: str | None = None
    graphs: tuple[GraphPlan, ...] = ()
    variant_of: str = ""
    parent_hash: str = ""
    outside: str = ""
    precision: str = ""
    tolerance: Tolerance | None = None
    quantisation: Quantisation | None = None
    verification: tuple[Verification, ...] = ()
    notes: tuple[str, ...] = ()
    licence: str = ""
    created_s: int = 0
    made_with: dict[str, str] = {}  # versions of what took part in the import


class _SchemaOnly(msgspec.Struct):
    schema: int


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_atomic(folder / MANIFEST_FILE, encode_manifest(manifest))


def read_manifest(folder: Path) -> Manifest:
    """Raises `ModelError` for a missing, damaged or newer manifest, and for names that lead out of the folder."""
    path = folder / MANIFEST_FILE
    data = read_capped(path, CONFIG_MAX_BYTES, what="manifest")
    again = "Import the model again (`magnitude rm NAME`, then `magnitude import SOURCE`)"
    try:
        schema = msgspec.json.decode(data, type=_SchemaOnly).schema
        if schema != SCHEMA_VERSION:
            raise ModelError(
                f"{path}: schema {schema}, but this version reads {SCHEMA_VERSION}",
                hint="Update Magnitude" if schema > SCHEMA_VERSION else again,
                param=str(path),
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        what = "empty" if not data else f"torn or not ours ({error})"
        raise ModelError(f"{path}: the manifest is {what}", hint=again, param=str(path)) from error
    graphs = [manifest.graph_file, manifest.fallback_graph_file, manifest.lora_graph_file]
    graphs += [plan.file for plan in manifest.graphs]
    names = [*graphs, manifest.tokenizer_file, manifest.chat_template_file, *manifest.files]
    for name in names:
        if name is not None:
            inside(folder, name, what="the manifest")
    return manifest


def describe(folder: Path, manifest: Manifest) -> ModelDescription:
    """The plain description that service and engine work with. The folder's name is the model's name."""
    return ModelDescription(
        name=folder.name,
        kind=manifest.kind,
        family=manifest.family,
        folder=str(folder.absolute()),
        graph_file=manifest.graph_file,
        model_hash=manifest.model_hash,
        weight_bytes=manifest.weight_bytes,
        special=manifest.special,
        decoder=manifest.decoder,
        encoder=manifest.encoder,
        tokenizer_file=manifest.tokenizer_file,
        chat_template_file=manifest.chat_template_file,
        fallback_graph_file=manifest.fallback_graph_file,
        lora_graph_file=manifest.lora_graph_file,
        graphs=tuple(plan.file for plan in manifest.graphs if plan.verified and not plan.needs),
        kernel_graphs=tuple(p.file for p in manifest.graphs if p.verified and p.needs == NEEDS_KERNELS),
        variant_of=manifest.variant_of,
        parent_hash=manifest.parent_hash,
        outside=manifest.outside,
        precision=manifest.precision or _precision(manifest.quantisation),
        tolerance=manifest.tolerance,
        licence=manifest.licence,
        created_s=manifest.created_s,
    )


def _precision(quantisation: Quantisation | None) -> str:
    """Of a folder that was imported before manifests named it; graphs of others say nothing of their weights."""
    if quantisation is None or not quantisation.bits:
        return ""
    return precision_of(quantisation.bits, quantisation.kv_type)
