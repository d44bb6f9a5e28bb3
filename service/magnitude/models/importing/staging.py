"""Folders that appear under their name complete, or not at all.

An import writes into a hidden staging folder beside its target; when everything is there and flushed to the disk,
one `rename` gives the folder its name. Killed at any moment, an import leaves a hidden staging folder that the next
import removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from magnitude.errors import ImportFailed
from magnitude.persist import sync_folder

STAGING_PREFIX = ".importing-"


def remove_leftovers(place: Path) -> list[Path]:
    """Remove staging folders in `place` whose import is gone. A running import holds a lock on its own."""
    removed = []
    for folder in sorted(place.glob(f"{STAGING_PREFIX}*")):
        if folder.is_symlink() or not folder.is_dir():
            continue
        with contextlib.suppress(OSError), _locked(folder) as free:
            if free:
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
    return removed


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether the folder's lock could be taken; it is held within the block and dies with the process."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def staging_folder(place: Path, name: str) -> Iterator[Path]:
    """A locked hidden folder beside the target; whatever is still under that name at the end is removed."""
    folder = Path(tempfile.mkdtemp(prefix=f"{STAGING_PREFIX}{name}-", dir=place))
    with _locked(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_whole(folder: Path) -> None:
    """Remove a folder, or a link but not what it leads to.

    Renamed first: a removal that is cut short leaves no half model under the name, and what it leaves the next import
    removes. Raises `OSError`.
    """
    if folder.is_symlink():
        folder.unlink()
    else:
        with staging_folder(folder.parent, folder.name.lstrip(".")) as grave:
            folder.rename(grave / folder.name)
            sync_folder(folder.parent)
            shutil.rmtree(grave / folder.name)
    sync_folder(folder.parent)


def put_in_place(
    staging: Path,
    target: Path,
    *,
    refuse_existing: Callable[[Path], None],
    put: Callable[[Path, Path], object] = Path.rename,
) -> None:
    """Flush everything and `put` `staging` where `target` is. `refuse_existing` raises when that stands in the way.

    Raises `ImportFailed`.
    """
    for path in staging.iterdir():
        path.chmod(0o644)
        _sync(path)
    staging.chmod(0o755)
    sync_folder(staging)
    try:
        put(staging, target)
    except OSError as error:
        refuse_existing(target)
        raise ImportFailed(
            f"{target}: what was imported cannot be put in place ({error.strerror})",
            hint="Check the folder's permissions",
            param=str(target),
        ) from error
    sync_folder(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
