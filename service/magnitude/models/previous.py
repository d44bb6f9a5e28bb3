"""The model that an import has replaced, kept beside it until the new one has shown that it computes right here.

It lies in the hidden folder `.NAME.previous`, so that nobody serves it by mistake. At every moment, a power cut
included, the model's own name leads to a whole model: two names change places in one step where the file system can.

A model may be a link to a folder elsewhere, as those of an image are. Then the link is what is replaced and kept; the
folder is never written.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from pathlib import Path

from magnitude.errors import MagnitudeError, ModelError
from magnitude.models.catalogue import open_folder
from magnitude.models.description import ModelDescription
from magnitude.models.importing.staging import remove_whole, staging_folder
from magnitude.models.integrity import damaged_files
from magnitude.models.manifest import MANIFEST_FILE, read_manifest
from magnitude.persist import sync_folder

# <linux/fs.h> and <fcntl.h>
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
# What file systems and kernels say that cannot exchange two names.
_NO_EXCHANGE = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP})


def previous_of(folder: Path) -> Path:
    """Where the predecessor of the model in `folder` lies, whether or not there is one."""
    return folder.with_name(f".{folder.name}.previous")


def take_the_place(new: Path, folder: Path) -> None:
    """Give the whole folder `new` the name of the model `folder`, whose present content becomes its predecessor.

    `new` may be left behind with what was replaced; it is the caller's to remove. Without a model of that name this
    is a rename. Raises `OSError`; the model is as it was then.
    """
    if not folder.is_dir() and not folder.is_symlink():
        new.rename(folder)
        return
    previous = previous_of(folder)
    if _kept(folder, previous):
        # The predecessor is safe under its name, so what the exchange leaves in `new` may go at any time.
        with contextlib.suppress(_CannotExchange):
            _exchange(new, folder)
            if new.is_symlink():
                new.unlink()
            return
    _forget(previous)
    folder.rename(previous)
    try:
        new.rename(folder)
    except OSError:
        previous.rename(folder)
        raise


def put_back(folder: Path) -> None:
    """Give the model in `folder` its predecessor back, after comparing all of its hashes. What is replaced becomes
    the predecessor in turn. Raises `ModelError`."""
    previous = previous_of(folder)
    if not previous.is_dir():
        raise ModelError(
            f"there is no earlier {folder.name!r} in {folder.parent}",
            hint="`magnitude import --replace` keeps one until the new model has passed its golden set",
            param=folder.name,
        )
    if (previous / MANIFEST_FILE).exists():
        manifest = read_manifest(previous)
        if damaged := damaged_files(previous, manifest, deep=True):
            raise ModelError(
                damaged[0],
                hint=f"The present model stays; for the earlier one import {manifest.source.file} (`--replace`)",
                param=folder.name,
            )
    try:
        if not folder.exists() and not folder.is_symlink():
            previous.rename(folder)
        else:
            _swap(previous, folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise ModelError(
            f"{folder}: the earlier model cannot be put in place ({error.strerror})",
            hint="Check the folder's permissions",
            param=str(folder),
        ) from error


def forget_previous(model: ModelDescription) -> bool:
    """Remove what the model has replaced. Whether there was anything, and it could be removed. Blocks.

    A model that has been replaced itself since it was described says nothing about the one that has its place now:
    what that one has replaced, this very model, stays.
    """
    folder = Path(model.folder)
    previous = previous_of(folder)
    try:
        if not previous.is_dir() and not previous.is_symlink():
            return False
        return open_folder(folder).model_hash == model.model_hash and _forget(previous)
    except (MagnitudeError, OSError):  # somebody else's folder: the next import of that name removes it
        return False


class _CannotExchange(OSError):
    """The file system or the kernel cannot exchange two names."""


def _exchange(one: Path, other: Path) -> None:
    """Let two names change places in one step (renameat2(2))."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError as error:  # glibc before 2.28
        raise _CannotExchange(errno.ENOSYS, "no renameat2") from error
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        code = ctypes.get_errno()
        kind = _CannotExchange if code in _NO_EXCHANGE else OSError
        raise kind(code, os.strerror(code), str(other))


def _swap(previous: Path, folder: Path) -> None:
    try:
        _exchange(previous, folder)
    except _CannotExchange:
        with staging_folder(folder.parent, folder.name) as place:
            folder.rename(place / folder.name)
            previous.rename(folder)
            (place / folder.name).rename(previous)


def _kept(folder: Path, previous: Path) -> bool:
    """Make `previous` a second name for all files of `folder`, or the same link. False where the file system has no
    hard links."""
    try:
        with staging_folder(folder.parent, folder.name) as place:
            copy = place / folder.name
            if folder.is_symlink():
                copy.symlink_to(folder.readlink())
            else:
                shutil.copytree(folder, copy, copy_function=os.link, symlinks=True)
                for path in (copy, *(path for path in copy.rglob("*") if path.is_dir() and not path.is_symlink())):
                    sync_folder(path)
            _forget(previous)
            copy.rename(previous)
        sync_folder(folder.parent)
    except (shutil.Error, OSError):
        return False
    return True


def _forget(previous: Path) -> bool:
    """Whether there was anything. Raises `OSError`; the predecessor is as it was then."""
    if not previous.is_symlink() and not previous.is_dir():
        return False
    try:
        remove_whole(previous)
    except OSError:
        if previous.is_symlink() or previous.is_dir():
            raise  # otherwise what is left of it has another name, and is nobody's predecessor
    return True
