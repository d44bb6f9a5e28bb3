"""Reading files that come from anywhere: every size is capped, and no path leads out of its folder.

Caps are far above what real models have, and far below what would hurt a board.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

from magnitude.errors import ModelError

MIB = 1024 * 1024

# The largest tokenizer.json in wide use (Gemma 3, 262,144 tokens with merges) has 33 MB.
TOKENIZER_MAX_BYTES = 128 * MIB
# config.json, tokenizer_config.json, genai_config.json: kilobytes; some carry the added tokens (1 to 2 MB).
CONFIG_MAX_BYTES = 8 * MIB
# The longest chat templates in use have about 20 KB.
TEMPLATE_MAX_BYTES = MIB
# A graph without its weights; a file with weights inside may reach protobuf's own limit.
GRAPH_MAX_BYTES = 2**31 - 1
# Tokens: Gemma has 262,144. Merges: Llama 3 has 280,147; a merge table derived from scores has a few a token.
VOCABULARY_MAX_TOKENS = 2**20
MERGES_MAX = 4 * 2**20
# Sixty-four KiB of text in one token is no token.
TOKEN_MAX_BYTES = 65536

LFS_PREFIX = b"version https://git-lfs.github.com/spec/"


def read_capped(path: Path, max_bytes: int, *, what: str) -> bytes:
    """The whole file, if it is a regular file of at most `max_bytes`. Raises `ModelError`."""
    if not path.is_file():
        raise ModelError(
            f"{path}: {what} is missing", hint="Check the path, or fetch the model again", param=str(path)
        )
    size_bytes = path.stat().st_size
    if size_bytes > max_bytes:
        raise ModelError(
            f"{path}: {what} has {size_bytes} bytes, more than the {max_bytes} that are read",
            hint="The file is not what its name says; fetch the model again",
            param=str(path),
        )
    data = path.read_bytes()
    if data.startswith(LFS_PREFIX):
        raise ModelError(
            f"{path}: this is a Git LFS pointer, not the file itself",
            hint="Run `git lfs pull` in the repository it came from, or download the file directly",
            param=str(path),
        )
    return data


def read_text_capped(path: Path, max_bytes: int, *, what: str) -> str:
    """Like `read_capped`, as UTF-8 text."""
    try:
        return read_capped(path, max_bytes, what=what).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{path}: {what} is not UTF-8 text (byte {error.start})", hint="Fetch the file again", param=str(path)
        ) from error


def read_json_object(path: Path, max_bytes: int, *, what: str) -> dict[str, Any]:
    """A JSON file whose top is an object. Raises `ModelError` for anything else."""
    text = read_text_capped(path, max_bytes, what=what)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{path}: {what} is not valid JSON ({error})",
            hint="The file is cut off or damaged; fetch it again",
            param=str(path),
        ) from error
    if not isinstance(value, dict):
        raise ModelError(
            f"{path}: {what} holds {type(value).__name__}, not an object",
            hint="Fetch the file again",
            param=str(path),
        )
    return value


def inside(folder: Path, name: str, *, what: str) -> Path:
    """`name` resolved inside `folder`, following links. Raises `ModelError` when it leads out of the folder."""
    pure = PurePosixPath(name.replace("\\", "/"))
    refused = not name or "\0" in name or pure.is_absolute() or ".." in pure.parts
    if not refused:
        root = folder.resolve()
        target = (root / pure).resolve()
        refused = target == root or root not in target.parents
    if refused:
        raise ModelError(
            f"{folder}: {what} names {name!r}, which is outside the model's own folder",
            hint="Put the file into the folder and name it without `/` or `..`; links out of the folder are refused",
            param=name,
        )
    return folder / pure
