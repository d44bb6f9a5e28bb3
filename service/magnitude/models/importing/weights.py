"""From weights (GGUF, safetensors) to a checked model folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from magnitude.errors import ImportFailed
from magnitude.models.genai_config import genai_config, write_genai_config
from magnitude.models.golden import write_golden
from magnitude.models.graphs.build import BuildResult, build_graph
from magnitude.models.graphs.graph import DATA_FILE, GRAPH_FILE, SERVING_GRAPH_FILE
from magnitude.models.graphs.last_row import write_last_row_graph
from magnitude.models.graphs.linear import Bits
from magnitude.models.graphs.lora import LORA_GRAPH_FILE, write_lora
from magnitude.models.importing.accuracy import FALLBACK_GRAPH_FILE, FLOAT, INT8, apply_plan, write_fallback
from magnitude.models.importing.fusion_check import add_plans
from magnitude.models.importing.golden_texts import golden_ids
from magnitude.models.importing.kernel_check import KernelPlanFound, add_kernel_plan
from magnitude.models.importing.order import ImportJob, Report, versions
from magnitude.models.importing.source_kind import recognise
from magnitude.models.importing.variant_check import Standing, check_shape, check_text, stand_beside
from magnitude.models.importing.verify_decoder import (
    Decision,
    DecoderCheck,
    compared_texts,
    record_decoder,
)
from magnitude.models.importing.verify_encoder import EncoderDecision, decide_encoder, record_encoder
from magnitude.models.integrity import file_entry, files_sha256, model_hash
from magnitude.models.manifest import (
    SCHEMA_VERSION,
    GraphPlan,
    Manifest,
    Quantisation,
    SourceEntry,
    TensorGroup,
    precision_of,
)
from magnitude.models.sources import WeightSource, open_source
from magnitude.models.tokenizers.chat_template import TEMPLATE_FILE
from magnitude.models.tokenizers.from_folder import tokenizer_from_folder
from magnitude.models.tokenizers.from_gguf import tokenizer_from_gguf
from magnitude.models.tokenizers.parts import TokenizerParts
from magnitude.models.tolerance import completed, default_tolerance
from magnitude.persist import write_atomic

CHECK_FOLDER = ".check"  # graphs for comparison; removed before the folder gets its name


def import_weights(job: ImportJob, staging: Path, report: Report) -> Manifest:
    """Builds, verifies and describes the model in `staging`. Raises `ImportFailed`."""
    path = Path(job.source)
    report(0.0, "reading the source")
    source = open_source(path)
    parts = _tokenizer(source, path)
    if parts.tokens > source.config.vocab:
        raise ImportFailed(
            f"the tokenizer has {parts.tokens} ids but the model only {source.config.vocab}",
            hint="Tokenizer and weights are of different models; fetch both from the same place",
        )
    kind = source.config.kind
    bits = job.bits or default_bits(source)
    if kind != "decoder" and job.kv == "int8":
        raise ImportFailed("an encoder has no KV cache", hint="Leave --kv out", param="kv")
    if kind != "decoder" and job.lora:
        raise ImportFailed("adapters belong to decoders, this is an encoder", hint="Leave --lora out", param="lora")
    report(0.02, "hashing the source")
    origin = _origin(job, path)
    check = staging / CHECK_FOLDER
    check.mkdir()
    texts = golden_ids(parts.tokenizer_json)
    if not texts:
        raise ImportFailed(
            "the tokenizer makes nothing of ordinary text, so the model cannot be checked",
            hint="The tokenizer is damaged or belongs to another model; fetch both from the same place",
        )
    if job.parent is not None:
        check_text(parts, job.parent, texts)
    if kind == "decoder":
        examined = DecoderCheck(source, check, bits=bits, kv=job.kv, texts=texts, report=report)
        decision: Decision | EncoderDecision = examined.decide(memory_bytes=job.memory_bytes)
    else:
        decision = decide_encoder(source, check, bits=bits, texts=texts, report=report)
    report(0.8, "writing the graph")
    built = build_graph(
        source,
        staging,
        bits=bits,
        kv_type=decision.kv_type if isinstance(decision, Decision) else "float32",
        accuracy_level=_level(decision),
        kv_scales=decision.kv_scales if isinstance(decision, Decision) else None,
        wide_channels=decision.wide_channels if isinstance(decision, Decision) else None,
    )
    if isinstance(decision, Decision) and decision.plan is not None:
        serving = staging / SERVING_GRAPH_FILE
        apply_plan(serving, decision.plan, serving)
        write_last_row_graph(serving, staging / GRAPH_FILE)
        write_fallback(serving, staging / FALLBACK_GRAPH_FILE)
    if job.lora and built.decoder is not None:
        write_lora(staging / built.graph_file, staging / LORA_GRAPH_FILE, built.decoder.layers)
    shutil.rmtree(check)
    plans: tuple[GraphPlan, ...] = ()
    plan_notes: tuple[str, ...] = ()
    kernel_plan = KernelPlanFound()
    if built.decoder is not None:
        report(0.85, "writing fusion plans")
        compared = compared_texts(source, texts)
        plans, plan_notes = add_plans(staging, built.graph_file, built.decoder, compared)
        exact = FALLBACK_GRAPH_FILE if (staging / FALLBACK_GRAPH_FILE).exists() else None
        kernel_plan = add_kernel_plan(staging, built.graph_file, exact, built.decoder, compared)
        plans += () if kernel_plan.plan is None else (kernel_plan.plan,)
    report(0.9, "recording the golden set")
    files = {name: file_entry(staging / name) for name in (built.graph_file, DATA_FILE)}
    the_hash = model_hash(files, files)
    graph = staging / built.graph_file
    if isinstance(decision, Decision):
        assert built.decoder is not None
        golden = record_decoder(graph, built.decoder, the_hash, decision.prompts)
    else:
        assert built.encoder is not None
        golden = record_encoder(graph, built.encoder, the_hash, texts)
    write_golden(staging, golden)
    usual = job.parent.tolerance if job.parent is not None else None
    tolerance = completed(job.tolerance, usual or default_tolerance(kind))
    standing = Standing(verification=(), outside="")
    if job.parent is not None:
        report(0.92, f"comparing it with {job.parent.name}")
        check_shape(built.decoder, built.encoder, job.parent, the_hash)
        shape = built.decoder or built.encoder
        assert shape is not None
        compared = compared_texts(source, texts)
        standing = stand_beside(staging / built.graph_file, shape, job.parent, compared, tolerance)
    report(0.95, "writing the tokenizer")
    template_file = write_tokenizer(staging, parts)
    if built.decoder is not None:
        config = genai_config(
            built.decoder, parts.special, family=source.family, graph_file=GRAPH_FILE, heads=source.config.heads
        )
        write_genai_config(staging, config)
    for name in sorted(p.name for p in staging.iterdir() if p.is_file()):
        if name not in files:
            files[name] = file_entry(staging / name)
    return Manifest(
        schema=SCHEMA_VERSION,
        name=job.name,
        kind=kind,
        family=source.family,
        graph_file=built.graph_file,
        source=origin,
        files=files,
        weight_bytes=files[DATA_FILE].size_bytes,
        model_hash=the_hash,
        special=parts.special,
        decoder=built.decoder,
        encoder=built.encoder,
        tokenizer_file="tokenizer.json",
        tokens=parts.tokens,
        chat_template_file=template_file,
        fallback_graph_file=FALLBACK_GRAPH_FILE if (staging / FALLBACK_GRAPH_FILE).exists() else None,
        lora_graph_file=LORA_GRAPH_FILE if job.lora else None,
        graphs=plans,
        variant_of=job.parent.name if job.parent is not None else "",
        parent_hash=job.parent.model_hash if job.parent is not None else "",
        outside=standing.outside,
        precision=precision_of(bits, built.decoder.kv_type if built.decoder else None),
        tolerance=tolerance,
        quantisation=Quantisation(
            bits=bits,
            groups=_groups(built),
            accuracy_level=_level(decision) if decision.accuracy_reason else None,
            accuracy_reason=decision.accuracy_reason,
            kv_type=built.decoder.kv_type if built.decoder else None,
            kv_scales=decision.kv_origin if isinstance(decision, Decision) else "",
        ),
        verification=(*decision.verification, *kernel_plan.verification, *standing.verification),
        notes=(*parts.notes, *_warnings(decision), *plan_notes, *kernel_plan.notes),
        licence=str(source.metadata.get("licence") or ""),
        created_s=job.created_s,
        made_with=versions(),
    )


def _warnings(decision: Decision | EncoderDecision) -> tuple[str, ...]:
    """What a person should know who asked for so few bits."""
    if isinstance(decision, Decision):
        return decision.notes
    if all(entry.passed for entry in decision.verification):
        return ()
    lowest = min(entry.cosine for entry in decision.verification if entry.cosine is not None)
    return (
        f"vectors differ from those of the float model (lowest cosine {lowest:.3f}): more bits would serve better",
    )


def _level(decision: Decision | EncoderDecision) -> int:
    if isinstance(decision, EncoderDecision):
        return decision.accuracy_level or 0
    return FLOAT if decision.plan is None else INT8


def default_bits(source: WeightSource) -> Bits:
    """What the source holds: 4-bit blocks stay 4, wider blocks 8. Float decoders get 4, float encoders stay float."""
    weights: dict[str, int] = {}
    for name in source.tensor_names():
        shape = source.shape(name)
        if len(shape) == 2:
            weights[source.stored_as(name)] = weights.get(source.stored_as(name), 0) + shape[0] * shape[1]
    most = max(weights, key=lambda stored: weights[stored], default="F32")
    if "Q" not in most:
        return 4 if source.config.kind == "decoder" else 16
    return 4 if most.lstrip("I").startswith(("Q2", "Q3", "Q4")) else 8


def write_tokenizer(staging: Path, parts: TokenizerParts) -> str | None:
    """Writes the tokenizer's files; returns the name of the chat template's file, if there is one."""
    write_atomic(staging / "tokenizer.json", parts.tokenizer_json.encode())
    for name, value in (
        ("tokenizer_config.json", parts.tokenizer_config),
        ("special_tokens_map.json", parts.special_tokens_map),
    ):
        write_atomic(staging / name, json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n")
    if parts.chat_template is None:
        return None
    write_atomic(staging / TEMPLATE_FILE, parts.chat_template.encode())
    return TEMPLATE_FILE


def _tokenizer(source: WeightSource, path: Path) -> TokenizerParts:
    raw: Mapping[str, Any] = source.metadata
    if source.format == "gguf":
        return tokenizer_from_gguf(raw["gguf"])
    return tokenizer_from_folder(path, bos=raw.get("bos"), eos=raw.get("eos") or (), pad=raw.get("pad"))


def _origin(job: ImportJob, path: Path) -> SourceEntry:
    found = recognise(path)
    format_: Literal["gguf", "huggingface"] = "gguf" if job.kind == "gguf" else "huggingface"
    return SourceEntry(format=format_, file=path.name, sha256=files_sha256(found.files), size_bytes=found.size_bytes)


def _groups(built: BuildResult) -> tuple[TensorGroup, ...]:
    """One line for each pair of formats, however many tensors share it."""
    found: dict[tuple[str, str, bool], list[str]] = {}
    for stored in built.weights:
        found.setdefault((stored.source_format, stored.stored_format, stored.lossless), []).extend(stored.tensors)
    return tuple(
        TensorGroup(
            tensors=_names(names),
            source_format=source_format,
            stored_format=stored_format,
            lossless=lossless,
            how=_how(source_format, lossless),
        )
        for (source_format, stored_format, lossless), names in found.items()
    )


def _names(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} tensors, {names[0]} first"


def _how(source_format: str, lossless: bool) -> str:
    if lossless:
        return "the same values"
    return "quantised a second time" if "Q" in source_format else "quantised"
