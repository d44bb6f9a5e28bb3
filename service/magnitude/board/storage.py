"""How much room a folder's file system has left."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec


class StorageSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """`free_bytes` is what an ordinary user may still write; `folder` is the one that was looked at."""

    folder: str
    total_bytes: int
    free_bytes: int
    read_only: bool


def storage_of(folder: Path) -> StorageSnapshot:
    """Storage below `folder`, or below its nearest ancestor that exists. Raises `OSError` when none can be read."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    status = os.statvfs(folder)
    return StorageSnapshot(
        folder=str(folder),
        total_bytes=status.f_blocks * status.f_frsize,
        free_bytes=status.f_bavail * status.f_frsize,
        read_only=bool(status.f_flag & os.ST_RDONLY),
    )


def free_bytes(folder: Path) -> int:
    """Bytes that may still be written below `folder`. Raises `OSError`."""
    return storage_of(folder).free_bytes
