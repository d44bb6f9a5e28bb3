"""From a ready ONNX graph to a checked model folder: ONNX Runtime GenAI's layout, or a bare graph.

Graph and weights are copied as they are. Both are loaded once, here in the confined child, so that a file that
crashes ONNX Runtime crashes nothing else.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Literal

import msgspec

from magnitude.errors import ImportFailed
from magnitude.models.catalogue import foreign_shape
from magnitude.models.genai_config import GENAI_FILE, read_genai_config
from magnitude.models.golden import write_golden
from magnitude.models.importing.golden_texts import golden_ids
from magnitude.models.importing.graph_runner import DecoderRunner, open_session
from magnitude.models.importing.onnx_examine import Examined, examine, explain_load_failure
from magnitude.models.importing.order import ImportJob, Report, versions
from magnitude.models.importing.verify_decoder import clear_prompts, record_decoder
from magnitude.models.importing.weights import write_tokenizer
from magnitude.models.integrity import file_entry, files_sha256, model_hash
from magnitude.models.manifest import (
    MANIFEST_FILE,
    SCHEMA_VERSION,
    FileEntry,
    Manifest,
    Quantisation,
    SourceEntry,
    read_manifest,
)
from magnitude.models.tokenizers.from_folder import tokenizer_from_folder
from magnitude.models.tolerance import completed, default_tolerance
from magnitude.models.untrusted import CONFIG_MAX_BYTES, inside, read_json_object
from magnitude.persist import write_atomic


def import_genai_folder(job: ImportJob, staging: Path, report: Report) -> Manifest:
    """A decoder in ONNX Runtime GenAI's layout, with its tokenizer. Raises `ImportFailed` or `ModelError`."""
    folder = Path(job.source)
    _refuse_options(job, "a ready graph")
    report(0.0, "reading the folder")
    config = read_genai_config(folder)
    decoder = config.model.decoder
    assert decoder is not None  # read_genai_config refuses a configuration without one
    own = read_manifest(folder).decoder if (folder / MANIFEST_FILE).is_file() else None
    listed = examine(inside(folder, decoder.filename, what=GENAI_FILE))
    # A folder that was imported before has a second graph beside the one that its configuration names.
    examined = (
        listed if own is None else examine(inside(folder, read_manifest(folder).graph_file, what=MANIFEST_FILE))
    )
    shape = foreign_shape(config, examined.signature, examined.path)
    if own is not None:
        shape = msgspec.structs.replace(shape, rope_frequencies=own.rope_frequencies)
    said = config.special(add_bos=False)
    parts = tokenizer_from_folder(folder, bos=said.bos, eos=said.eos, pad=said.pad)
    if parts.tokens > shape.vocab_size:
        raise ImportFailed(
            f"the tokenizer has {parts.tokens} ids but the model only {shape.vocab_size}",
            hint="Tokenizer and graph are of different models; fetch both from the same place",
        )
    files = _copy_graph(examined, staging, report)
    graph = staging / examined.path.name
    _try_session(examined, graph)
    the_hash = model_hash(files, files)
    weights = sum(entry.size_bytes for entry in files.values())
    if listed.path != examined.path:
        shutil.copyfile(listed.path, staging / listed.path.name)
    report(0.6, "recording the golden set")
    texts = [ids[: shape.context_length] for ids in golden_ids(parts.tokenizer_json)]
    runner = DecoderRunner(graph, shape)
    # Where only the last row is there, the prompts cannot be chosen; those that end clearly are kept.
    shorts = [ids[:24] for ids in texts]
    all_rows = shape.logits_all_positions or shape.logit_rows is not None
    prompts = clear_prompts(runner.logits, texts) if all_rows else shorts
    del runner
    write_golden(staging, record_decoder(graph, shape, the_hash, prompts))
    template = write_tokenizer(staging, parts)
    raw = read_json_object(folder / GENAI_FILE, CONFIG_MAX_BYTES, what="configuration")
    write_atomic(staging / GENAI_FILE, json.dumps(raw, indent=2).encode() + b"\n")
    _add_other_files(staging, files)
    return Manifest(
        schema=SCHEMA_VERSION,
        name=job.name,
        kind="decoder",
        family=config.model.type,
        graph_file=graph.name,
        source=_origin(folder.name, "genai", [examined.path, *examined.data_files]),
        files=files,
        weight_bytes=weights,
        model_hash=the_hash,
        special=parts.special,
        decoder=shape,
        tokenizer_file="tokenizer.json",
        tokens=parts.tokens,
        chat_template_file=template,
        tolerance=completed(job.tolerance, default_tolerance("decoder")),
        quantisation=Quantisation(
            bits=0,
            accuracy_level=examined.accuracy_level(),
            accuracy_reason="as the graph's maker chose it" if examined.accuracy_level() is not None else "",
            kv_type=shape.kv_type,
        ),
        notes=(
            *parts.notes,
            "graph and weights are as their maker built them; there is no float form to compare with",
        ),
        licence=_licence(folder),
        created_s=job.created_s,
        made_with=versions(),
    )


def import_plain_graph(job: ImportJob, staging: Path, report: Report) -> Manifest:
    """Any other graph, served as plain tensors in and out. Raises `ImportFailed` or `ModelError`."""
    _refuse_options(job, "a plain graph")
    report(0.0, "reading the graph")
    examined = examine(Path(job.source))
    files = _copy_graph(examined, staging, report)
    graph = staging / examined.path.name
    report(0.6, "loading it once")
    _try_session(examined, graph)
    return Manifest(
        schema=SCHEMA_VERSION,
        name=job.name,
        kind="tensors",
        family="onnx",
        graph_file=graph.name,
        source=_origin(examined.path.name, "onnx", [examined.path, *examined.data_files]),
        files=files,
        weight_bytes=sum(entry.size_bytes for entry in files.values()),
        model_hash=model_hash(files, files),
        created_s=job.created_s,
        made_with=versions(),
    )


def _refuse_options(job: ImportJob, what: str) -> None:
    if job.bits is not None or job.kv == "int8" or job.lora:
        raise ImportFailed(
            f"--bits, --kv and --lora change how a graph is built, and {what} is taken as it is",
            hint="Leave them out, or import the model's weights (GGUF or safetensors)",
            param="bits" if job.bits is not None else "kv" if job.kv == "int8" else "lora",
        )
    if job.parent is not None:
        raise ImportFailed(
            f"a variant is built from weights, and {what} is taken as it is",
            hint="Import the model's weights (GGUF or safetensors) as the variant",
            param="variant-of",
        )


def _copy_graph(examined: Examined, staging: Path, report: Report) -> dict[str, FileEntry]:
    """Copy graph and weights under the names that the graph uses for them."""
    files: dict[str, FileEntry] = {}
    sources = [examined.path, *examined.data_files]
    for index, source in enumerate(sources):
        report(0.1 + 0.4 * index / len(sources), f"copying {source.name}")
        name = str(source.relative_to(examined.path.parent))
        target = staging / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        files[name] = file_entry(target)
    return files


def _try_session(examined: Examined, graph: Path) -> None:
    try:
        open_session(graph)
    except ImportFailed as error:
        raise explain_load_failure(examined, error) from error


def _add_other_files(staging: Path, files: dict[str, FileEntry]) -> None:
    for path in sorted(staging.iterdir()):
        if path.is_file() and path.name not in files:
            files[path.name] = file_entry(path)


def _origin(name: str, format_: Literal["genai", "onnx"], paths: list[Path]) -> SourceEntry:
    size_bytes = sum(path.stat().st_size for path in paths)
    return SourceEntry(format=format_, file=name, sha256=files_sha256(paths), size_bytes=size_bytes)


def _licence(folder: Path) -> str:
    """The licence that a folder's own manifest states, where it was once imported by us."""
    path = folder / "manifest.json"
    if not path.is_file():
        return ""
    value = read_json_object(path, CONFIG_MAX_BYTES, what="manifest").get("licence")
    return value if isinstance(value, str) else ""
