"""Which models there are: folders under the models folder, ours and those that people already have.

A folder with our manifest is described by it. A foreign folder in ONNX Runtime GenAI's layout is described by its
`genai_config.json` and by the signature of its graph; nothing is imported and no session is opened.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from magnitude.errors import MagnitudeError, ModelError
from magnitude.models.description import LOGIT_ROWS, DecoderShape, KvType, ModelDescription
from magnitude.models.genai_config import GENAI_FILE, GenaiConfig, read_genai_config, shape_from_config
from magnitude.models.integrity import check_integrity
from magnitude.models.manifest import MANIFEST_FILE, describe, read_manifest
from magnitude.models.onnx_signature import Signature, read_signature
from magnitude.models.untrusted import CONFIG_MAX_BYTES, inside, read_json_object

# Data beside a foreign graph is sampled for its hash: hashing gigabytes at every start would take a board minutes.
_SAMPLE_BYTES = 1 << 20


class BrokenModel(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that looks like a model but cannot be used, and why."""

    name: str
    folder: str
    message: str
    hint: str = ""


def resolve(path: Path) -> Path:
    """The model folder that `path` names: the folder itself, or that of a graph inside one. Raises `ModelError`."""
    if path.is_dir():
        return path
    if path.is_file() and path.suffix == ".onnx":
        return path.parent
    raise ModelError(
        f"{path}: this is neither a model folder nor a graph inside one" if path.exists() else f"{path}: not there",
        hint="Name a folder made by `magnitude import`, or the model.onnx inside one (`magnitude list` shows them)",
        param=str(path),
    )


def open_folder(folder: Path) -> ModelDescription:
    """Describe one model folder and compare its files' sizes. Raises `ModelError` naming the file and the cause."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: not there", hint="`magnitude list` shows the models", param=str(folder))
    if (folder / MANIFEST_FILE).exists():
        manifest = read_manifest(folder)
        check_integrity(folder, manifest, deep=False)
        return describe(folder, manifest)
    if (folder / GENAI_FILE).exists():
        return _foreign(folder)
    raise ModelError(
        f"{folder}: there is neither {MANIFEST_FILE} nor {GENAI_FILE}, so it is not a usable model folder",
        hint=f"`magnitude import {folder}` makes one of weights or a plain graph",
        param=str(folder),
    )


def scan(models_folder: Path) -> list[ModelDescription | BrokenModel]:
    """Every model in the folder by name; broken ones are reported in their place. Hidden folders are left out."""
    try:
        folders = sorted(p for p in models_folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        return [
            BrokenModel(
                name=models_folder.name,
                folder=str(models_folder),
                message=f"{models_folder}: the folder cannot be read ({error.strerror})",
                hint="Check its permissions",
            )
        ]
    return [_described_or_broken(folder) for folder in folders]


def find(models_folder: Path, name: str) -> Path:
    """The folder of the model called `name`, or `name` itself where it is a path. Raises `ModelError`."""
    if "/" in name:
        return resolve(Path(name))
    folder = models_folder / name
    if name in ("", ".", "..") or name.startswith(".") or not folder.is_dir():
        known = ", ".join(entry.name for entry in scan(models_folder)) or "none yet"
        raise ModelError(f"there is no model {name!r} in {models_folder}", hint=f"Models there: {known}", param=name)
    return folder


def verify_integrity(model: ModelDescription, *, deep: bool) -> None:
    """Compare the files with the manifest: sizes, and hashes when `deep`. Raises `ModelError`.

    A foreign folder has nothing to compare with; there the graph is read as far as its signature.
    """
    folder = Path(model.folder)
    if (folder / MANIFEST_FILE).exists():
        check_integrity(folder, read_manifest(folder), deep=deep)
    else:
        read_signature(folder / model.graph_file)


def _described_or_broken(folder: Path) -> ModelDescription | BrokenModel:
    try:
        return open_folder(folder)
    except MagnitudeError as error:
        return BrokenModel(name=folder.name, folder=str(folder), message=error.message, hint=error.hint)
    except OSError as error:
        return BrokenModel(name=folder.name, folder=str(folder), message=f"{folder}: {error}", hint="")


def _foreign(folder: Path) -> ModelDescription:
    config = read_genai_config(folder)
    decoder = config.model.decoder
    assert decoder is not None  # read_genai_config refuses a configuration without one
    graph = inside(folder, decoder.filename, what=GENAI_FILE)
    shape = foreign_shape(config, read_signature(graph), graph)
    tokenizer = folder / "tokenizer.json"
    template = folder / "chat_template.jinja"
    files = [p for p in folder.iterdir() if p.is_file() and p.suffix not in {".json", ".jinja", ".txt", ".md"}]
    return ModelDescription(
        name=folder.name,
        kind="decoder",
        family=config.model.type,
        folder=str(folder.absolute()),
        graph_file=decoder.filename,
        model_hash=_sampled_hash(graph, files),
        weight_bytes=sum(path.stat().st_size for path in files),
        special=config.special(add_bos=_adds_bos(folder)),
        decoder=shape,
        tokenizer_file=tokenizer.name if tokenizer.exists() else None,
        chat_template_file=template.name if template.exists() else None,
        created_s=int(graph.stat().st_mtime),
    )


def foreign_shape(config: GenaiConfig, signature: Signature, graph: Path) -> DecoderShape:
    """The shape of a decoder that others built: names from its configuration, types and inputs from its graph.

    Raises `ModelError` where the two do not agree.
    """
    shape = shape_from_config(config)
    inputs = {value.name: value for value in signature.inputs}
    outputs = {value.name: value for value in signature.outputs}
    wanted = [pattern % layer for layer in range(shape.layers) for pattern in (shape.past_key, shape.past_value)]
    made = [pattern % layer for layer in range(shape.layers) for pattern in (shape.present_key, shape.present_value)]
    missing = [name for name in [shape.input_ids, *wanted] if name not in inputs]
    missing += [name for name in [shape.logits, *made] if name not in outputs]
    if missing:
        raise ModelError(
            f"{graph}: {GENAI_FILE} names {missing[0]!r}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + ", which the graph does not have",
            hint="Configuration and graph are of different models; build or fetch the folder again",
            param=str(graph),
        )
    known = {shape.input_ids, shape.attention_mask, shape.position_ids, LOGIT_ROWS, *wanted}
    extra = [value.name for value in signature.inputs if value.name not in known]
    if extra:
        raise ModelError(
            f"{graph}: the graph wants an input {extra[0]!r} that is not known",
            hint="Only decoders with ids, mask, positions and KV are supported",
            param=str(graph),
        )
    dtype = inputs[shape.past_key % 0].dtype
    kv_types: dict[str, KvType] = {"float32": "float32", "float16": "float16", "int8": "int8"}
    if dtype not in kv_types:
        raise ModelError(
            f"{graph}: a KV cache of {dtype} is not supported",
            hint="Build the model with a KV cache of float32, float16 or int8",
            param=str(graph),
        )
    rows = outputs[shape.logits].shape
    return msgspec.structs.replace(
        shape,
        kv_type=kv_types[dtype],
        logit_rows=LOGIT_ROWS if LOGIT_ROWS in inputs else None,
        logits_all_positions=rows is None or (len(rows) == 3 and rows[1] != 1),
        attention_mask=shape.attention_mask if shape.attention_mask in inputs else None,
        position_ids=shape.position_ids if shape.position_ids in inputs else None,
        vocab_size=rows[-1] if rows and rows[-1] > 0 else shape.vocab_size,
    )


def _adds_bos(folder: Path) -> bool:
    """Whether the tokenizer is told to begin each text with a begin token. Reads the flag only, not the tokenizer."""
    path = folder / "tokenizer_config.json"
    if not path.exists():
        return False
    return read_json_object(path, CONFIG_MAX_BYTES, what="tokenizer configuration").get("add_bos_token") is True


def _sampled_hash(graph: Path, files: list[Path]) -> str:
    """A hash for a folder that has none: the graph whole up to a sample, the data's ends, sizes and times.

    Content that changes without a change of size or time is not noticed; importing the folder gives a full hash.
    """
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda p: (p != graph, p.name)):
        status = path.stat()
        digest.update(f"{path.name}:{status.st_size}:{status.st_mtime_ns}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE_BYTES))
            if status.st_size > 2 * _SAMPLE_BYTES:
                file.seek(-_SAMPLE_BYTES, os.SEEK_END)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
