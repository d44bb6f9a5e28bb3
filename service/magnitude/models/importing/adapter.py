"""`import_adapter`: from a LoRA adapter's files to a checked folder inside its base, or nothing at all.

The parent's side, as `parent.py` is for models: a confined child (`adapter_job.py`) reads the file.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from magnitude.board.memory import effective_memory
from magnitude.errors import ImportFailed
from magnitude.models.adapters import (
    ADAPTERS_FOLDER,
    SEPARATOR,
    AdapterDescription,
    AdapterManifest,
    open_adapter,
    write_adapter_manifest,
)
from magnitude.models.description import ModelDescription
from magnitude.models.importing.order import AdapterJob
from magnitude.models.importing.parent import check_disk, job_limits
from magnitude.models.importing.sandbox import Progress, run_confined
from magnitude.models.importing.source_kind import check_name, name_of
from magnitude.models.importing.staging import put_in_place, remove_leftovers, staging_folder
from magnitude.models.sources.peft import CONFIG_FILE, WEIGHTS_FILE


def import_adapter(
    source: Path,
    base: ModelDescription,
    *,
    name: str | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
    memory_bytes: int | None = None,
) -> AdapterDescription:
    """Import `source` (a PEFT folder or a GGUF LoRA file) as the adapter `name` of `base`.

    `base` must have been imported with its LoRA graph. `memory_bytes` is what may be used; None asks the machine.
    Raises `ImportFailed`; then nothing is left.
    """
    kind, size_bytes = _recognise(source)
    chosen = name if name is not None else name_of(source)
    check_name(chosen)
    if base.lora_graph_file is None:
        raise ImportFailed(
            f"the model {base.name} was imported without the graph that adapters need",
            hint="Import it again with --lora; only then is that graph made",
            param="adapter-for",
        )
    place = Path(base.folder) / ADAPTERS_FOLDER
    target = place / chosen

    def refuse_existing(path: Path) -> None:
        if path.exists() or path.is_symlink():
            raise ImportFailed(
                f"the model {base.name} has an adapter {chosen!r} already",
                hint=f"Remove it with `magnitude rm {base.name}{SEPARATOR}{chosen}`, or choose another --name",
                param="name",
                code="adapter_exists",
            )

    refuse_existing(target)
    fresh = not place.exists()
    place.mkdir(exist_ok=True)
    try:
        remove_leftovers(place)
        check_disk(size_bytes, place)
        headroom_bytes = memory_bytes if memory_bytes is not None else effective_memory().headroom_bytes
        with staging_folder(place, chosen) as staging:
            job = AdapterJob(
                kind=kind,
                source=str(source.absolute()),
                staging=str(staging.absolute()),
                name=chosen,
                base=base,
                created_s=int(time.time()),
            )
            answer = run_confined(
                "magnitude.models.importing.adapter_job",
                job,
                limits=job_limits(size_bytes, headroom_bytes),
                what=str(source),
                progress=progress,
            )
            try:
                manifest = msgspec.json.decode(answer, type=AdapterManifest)
            except msgspec.MsgspecError as error:
                raise ImportFailed(f"{source}: the import gave no usable manifest ({error})", hint="") from error
            write_adapter_manifest(staging, manifest)
            open_adapter(staging, base)
            put_in_place(staging, target, refuse_existing=refuse_existing)
    except BaseException:
        if fresh:
            _remove_empty(place)
        raise
    return open_adapter(target, base)


def _remove_empty(place: Path) -> None:
    try:
        place.rmdir()
    except OSError:
        return  # another import has put something there meanwhile


def _recognise(path: Path) -> tuple[Literal["peft", "gguf"], int]:
    """What kind of adapter lies at `path`, and its size. Raises `ImportFailed`."""
    if path.is_dir():
        if (path / CONFIG_FILE).is_file():
            files = [file for file in (path / CONFIG_FILE, path / WEIGHTS_FILE) if file.is_file()]
            return "peft", sum(file.stat().st_size for file in files)
        ggufs = sorted(path.glob("*.gguf"))
        if len(ggufs) == 1:
            path = ggufs[0]
    if path.is_file():
        with path.open("rb") as file:
            if file.read(4) == b"GGUF":
                return "gguf", path.stat().st_size
    raise ImportFailed(
        f"{path}: this is no LoRA adapter" if path.exists() else f"{path}: there is no such file or folder",
        hint=f"Name a folder with {CONFIG_FILE} and {WEIGHTS_FILE}, or a GGUF adapter file",
        param=str(path),
    )
