"""Files of an untrusted model folder: nothing outside it is read, and nothing without a limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from magnitude.errors import ImportFailed

MAX_JSON_BYTES = 64 * 1024 * 1024  # the largest tokenizer.json files have some 30 MB


def inside(folder: Path, name: str) -> Path:
    """The path of `name` in `folder`. Raises `ImportFailed` if that file lies, or links to, somewhere else."""
    if not name or "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise ImportFailed(
            f"{folder.name} names the file {name[:80]!r}", hint="File names must stay inside the folder"
        )
    path = folder / name
    if not path.exists():
        raise ImportFailed(f"{folder.name} lacks {name}", hint="Download the whole model folder")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ImportFailed(
            f"{name} is a link that leads out of {folder.name}",
            hint="Copy the folder with links resolved, for example with 'cp -rL'",
        )
    if not path.is_file():
        raise ImportFailed(f"{name} in {folder.name} is not a file", hint="Download the whole model folder")
    return path


def read_json(folder: Path, name: str) -> Any:
    """The parsed JSON file `name` of `folder`. Raises `ImportFailed` if it is missing, too large or broken."""
    path = inside(folder, name)
    if path.stat().st_size > MAX_JSON_BYTES:
        raise ImportFailed(f"{name} has {path.stat().st_size} bytes", hint=f"At most {MAX_JSON_BYTES} are read")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as broken:
        raise ImportFailed(f"{name} in {folder.name} is not valid JSON: {broken}", hint="Download it again") from None
