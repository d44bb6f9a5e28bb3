"""Is what lies on the disk what was imported? Sizes are always compared, hashes on request.

Sizes find the usual damage (a download or copy that was cut off, a Git LFS pointer in place of the weights) at
once and cost nothing; hashes read every byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from magnitude.errors import ModelError
from magnitude.models.manifest import FileEntry, Manifest
from magnitude.models.untrusted import LFS_PREFIX, inside

# One read of 4 MiB: larger ones are no faster, smaller ones cost calls.
_CHUNK_BYTES = 4 * 1024 * 1024


def file_sha256(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file; `progress` is told how many bytes are done."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done)
    return digest.hexdigest()


def files_sha256(paths: Iterable[Path]) -> str:
    """One hash over several files: over their names and hashes, in the order of the names."""
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda p: p.name):
        digest.update(f"{path.name}:{file_sha256(path)}\n".encode())
    return digest.hexdigest()


def model_hash(files: dict[str, FileEntry], names: Iterable[str]) -> str:
    """The hash that keys everything derived from a model: over its graph and weight files."""
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(f"{name}:{files[name].sha256}\n".encode())
    return digest.hexdigest()


def file_entry(path: Path) -> FileEntry:
    return FileEntry(size_bytes=path.stat().st_size, sha256=file_sha256(path))


def damaged_files(folder: Path, manifest: Manifest, *, deep: bool) -> list[str]:
    """What is wrong, one line a file, each naming the file and the cause. Empty: all is well."""
    found = []
    for name, entry in manifest.files.items():
        # The chat template is there to be edited; a broken one is told when it is read.
        if name == manifest.chat_template_file and (folder / name).is_file():
            continue
        path = inside(folder, name, what="the manifest")
        if cause := _damage(path, entry, deep):
            found.append(f"{path}: {cause}")
    return found


def check_integrity(folder: Path, manifest: Manifest, *, deep: bool) -> None:
    """Raises `ModelError` that names the first damaged file, how many more there are, and what to do."""
    found = damaged_files(folder, manifest, deep=deep)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ModelError(
            found[0] + more,
            hint=f"Run `magnitude rm {folder.name}` and import {manifest.source.file} again",
            param=str(folder),
        )


def _damage(path: Path, entry: FileEntry, deep: bool) -> str | None:
    try:
        if not path.is_file():
            return "the file is missing"
        size_bytes = path.stat().st_size
        if size_bytes != entry.size_bytes:
            with path.open("rb") as file:
                if file.read(len(LFS_PREFIX)) == LFS_PREFIX:
                    return "this is a Git LFS pointer, not the file itself"
            if size_bytes == 0:
                return "the file is empty"
            kind = "cut off" if size_bytes < entry.size_bytes else "longer than it was"
            return f"the file is {kind} ({size_bytes} of {entry.size_bytes} bytes)"
        if deep and file_sha256(path) != entry.sha256:
            return "the content has changed since the import (sha256 differs)"
    except OSError as error:
        return f"the file cannot be read ({error.strerror})"
    return None
