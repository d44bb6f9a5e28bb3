"""`import_model`: from a source to a checked model folder under its own name, or nothing at all.

The parent's side. It looks at names and sizes only; a confined child reads the file (`job.py`) and writes into a
staging folder (`staging.py`).
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from magnitude.board.memory import effective_memory
from magnitude.errors import ImportFailed
from magnitude.models.description import ModelDescription
from magnitude.models.importing.order import ImportJob
from magnitude.models.importing.sandbox import Limits, Progress, run_confined
from magnitude.models.importing.source_kind import check_name, default_name, recognise
from magnitude.models.importing.staging import put_in_place, remove_leftovers, staging_folder
from magnitude.models.integrity import damaged_files, file_entry
from magnitude.models.manifest import Manifest, describe, write_manifest
from magnitude.models.previous import take_the_place
from magnitude.models.tolerance import Tolerance

# Private memory of a job beside the weights it copies: interpreter and libraries (measured 110 MB), a tokenizer
# with a large vocabulary (400 MB for 262,144 tokens in Python lists), one float copy of the largest matrix.
_BASE_MEMORY_BYTES = 1536 << 20
# A 4-bit file is dequantised to float for the reference: 32 / 4.5 bits a weight, and ONNX Runtime packs it once more.
_MEMORY_PER_SOURCE_BYTE = 16
# What is left to the rest of the machine.
_MEMORY_SHARE = 0.85
# Even a small machine needs this much for the interpreter, ONNX Runtime and a tokenizer.
_LEAST_MEMORY_BYTES = 512 << 20
# A converted model is at most this much larger than its source, beside tokenizer and tables: float16 weights that
# stay float become float32.
_DISK_PER_SOURCE_BYTE = 2
_DISK_BESIDE_BYTES = 64 << 20
# Below a block of most file systems a second copy takes hardly more than its name.
_LEAST_SHARED_BYTES = 4096
# CPU seconds: a minute to start with, and two for each ten MB, which a Pi 5 needs a fifth of. A damaged
# file that sends a parser into a loop is stopped after minutes, not never.
_CPU_S_BASE = 300
_CPU_S_PER_MB = 12.0


def import_model(
    source: Path,
    *,
    name: str | None = None,
    bits: Literal[4, 8, 16] | None = None,
    kv: Literal["float", "int8"] = "float",
    lora: bool = False,
    variant_of: ModelDescription | None = None,
    tolerance: Tolerance | None = None,
    replace: bool = False,
    models_folder: Path,
    progress: Callable[[Progress], None] = lambda _: None,
    memory_bytes: int | None = None,
) -> ModelDescription:
    """Import `source` (a GGUF file, a Hugging Face folder, a ready ONNX folder or graph) as `models_folder/name`.

    `bits` None keeps what the source has (float decoders become 4-bit, float encoders stay float). `lora` adds the
    graph that adapters need. With `variant_of` the model becomes a variant of that one, called `PARENT-PRECISION`
    unless it is named. `tolerance` is what the model declares for its variants, or what this variant has to be within
    (None: the usual one, or the parent's). With `replace` a model of that name gives its place up once the new one is
    whole, and is kept as its predecessor. `memory_bytes` is what may be used; None asks the machine. Raises
    `ImportFailed`; then nothing that looks usable is left.
    """
    found = recognise(source)
    if variant_of is not None:
        _check_parent(variant_of, lora=lora)
    usual = default_name(found) if variant_of is None else variant_of.name
    chosen = name if name is not None else usual
    check_name(chosen)
    # What a variant is called says what became of its weights, so that is not known yet.
    target = None if name is None and variant_of is not None else models_folder / chosen
    if target is not None and not replace:
        _refuse_existing(target)
    models_folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(models_folder)
    check_disk(found.size_bytes, models_folder)
    beside_bytes = variant_of.weight_bytes if variant_of is not None else 0
    limits = job_limits(
        found.size_bytes + beside_bytes,
        memory_bytes if memory_bytes is not None else effective_memory().headroom_bytes,
    )
    with staging_folder(models_folder, chosen) as staging:
        job = ImportJob(
            kind=found.kind,
            source=str(found.path.absolute()),
            staging=str(staging.absolute()),
            name=chosen,
            bits=bits,
            kv=kv,
            lora=lora,
            parent=variant_of,
            tolerance=tolerance,
            memory_bytes=limits.data_bytes,
            created_s=int(time.time()),
        )
        answer = run_confined(
            "magnitude.models.importing.job", job, limits=limits, what=str(source), progress=progress
        )
        try:
            manifest = msgspec.json.decode(answer, type=Manifest)
        except msgspec.MsgspecError as error:
            raise ImportFailed(f"{source}: the import gave no usable manifest ({error})", hint="") from error
        if target is None:
            target = models_folder / f"{chosen}-{manifest.precision}"
            check_name(target.name)
            if not replace:
                _refuse_existing(target)
            manifest = msgspec.structs.replace(manifest, name=target.name)
        if variant_of is not None:
            _share_weights(staging, manifest, variant_of)
        _finish(staging, target, manifest, replace=replace)
    return describe(target, manifest)


def job_limits(source_bytes: int, memory_bytes: int) -> Limits:
    """Bounds for a source of that size on a machine with that much memory to give."""
    wanted = _BASE_MEMORY_BYTES + _MEMORY_PER_SOURCE_BYTE * source_bytes
    cpu_s = int(_CPU_S_BASE + _CPU_S_PER_MB * source_bytes / 1e6)
    return Limits(
        data_bytes=max(_LEAST_MEMORY_BYTES, min(wanted, int(memory_bytes * _MEMORY_SHARE))),
        cpu_s=cpu_s,
        wall_s=2.0 * cpu_s,
    )


def _check_parent(parent: ModelDescription, *, lora: bool) -> None:
    if parent.variant_of:
        raise ImportFailed(
            f"{parent.name} is itself a variant of {parent.variant_of}",
            hint=f"Name {parent.variant_of}: all variants belong to one model",
            param="variant-of",
        )
    if parent.kind == "tensors":
        raise ImportFailed(
            f"{parent.name} is a plain graph, of which nothing is known that variants could be compared by",
            hint="Import the other precision as a model of its own",
            param="variant-of",
        )
    if lora:
        raise ImportFailed(
            f"adapters belong to {parent.name}, not to its variants", hint="Leave --lora out", param="lora"
        )


def _share_weights(staging: Path, manifest: Manifest, parent: ModelDescription) -> None:
    """Keep what is the parent's on the disk once: a variant with an INT8 cache has the same weights."""
    for name, entry in manifest.files.items():
        theirs = Path(parent.folder) / name
        # A template is there to be edited, each by itself.
        shareable = entry.size_bytes >= _LEAST_SHARED_BYTES and name != manifest.chat_template_file
        if not shareable or not theirs.is_file() or theirs.stat().st_size != entry.size_bytes:
            continue
        if file_entry(theirs) != entry:
            continue
        with contextlib.suppress(OSError):  # file systems without hard links keep two
            link = staging / f"{name}.parent"
            link.hardlink_to(theirs)
            link.replace(staging / name)


def _refuse_existing(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise ImportFailed(
            f"a model named {target.name!r} is already there",
            hint=f"Replace it (--replace), remove it (`magnitude rm {target.name}`), or choose another name (--name)",
            param="name",
            code="model_exists",
        )


def check_disk(source_bytes: int, models_folder: Path) -> None:
    """Raises `ImportFailed` when a source of that size may not fit into the folder once it is converted."""
    need = _DISK_BESIDE_BYTES + _DISK_PER_SOURCE_BYTE * source_bytes
    free = shutil.disk_usage(models_folder).free
    if free < need:
        raise ImportFailed(
            f"{models_folder}: {free / 1e6:.0f} MB are free, the import may need {need / 1e6:.0f} MB",
            hint="Remove a model that is not used (`magnitude list`, `magnitude rm NAME`), or free some space",
            param=str(models_folder),
        )


def _finish(staging: Path, target: Path, manifest: Manifest, *, replace: bool) -> None:
    """Write the manifest, last of all files, and give the folder its name."""
    damaged = damaged_files(staging, manifest, deep=False)
    if damaged:
        raise ImportFailed(damaged[0], hint="The storage may be full or failing; check `dmesg` and try again")
    write_manifest(staging, manifest)
    if replace:
        put_in_place(staging, target, refuse_existing=lambda _: None, put=take_the_place)
    else:
        put_in_place(staging, target, refuse_existing=_refuse_existing)
