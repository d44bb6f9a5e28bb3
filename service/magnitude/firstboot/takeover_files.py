"""Carries out what `takeover.py` decides: reads the folder, puts files in place, renames and wipes."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from magnitude.firstboot.boot_partition import MOUNTS, Run, writable
from magnitude.firstboot.parcel import LIMIT_BYTES, REJECTED, SECRET, TAKEN, Found, Kind, kind_of, kind_of_taken
from magnitude.firstboot.takeover import Finish, Places, Reject, Step, Take, Write, explanation, plan
from magnitude.persist import StateFile, sync_folder, write_atomic

_log = logging.getLogger(__name__)

FOLDER = "magnitude"  # on the boot partition
# A folder with more is not one that somebody filled for us; looking at all of it could take a slow card minutes.
MAX_ENTRIES = 1000
# Opened without following links and without waiting (a FIFO on another file system than FAT).
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Result = Literal["taken", "finished", "rejected", "failed"]


class Noted(msgspec.Struct, frozen=True, kw_only=True):
    """Name → SHA-256 of files that were taken over and still have their old name."""

    taken: dict[str, str] = {}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one file. `detail` says why it was rejected or failed, and may be logged."""

    name: str
    result: Result
    detail: str = ""


def take_over(
    partition: Path,
    places: Places,
    notes: StateFile[Noted],
    *,
    check_config: Callable[[str], None],
    run: Run,
    mountinfo: Path = MOUNTS,
) -> list[Outcome]:
    """Take over what lies in the folder `magnitude` of the boot partition mounted at `partition`.

    A partition that is missing, damaged or read-only costs nothing but what cannot be read or renamed there. Never
    raises for its sake; what fails is in the outcomes, and is tried again at the next boot.
    """
    folder = _folder_in(partition)
    if folder is None:
        return []
    found, unwiped = read_folder(folder)
    steps = plan(found, _noted(notes), places, check_config)
    outcomes: list[Outcome] = []
    if unwiped or any(not isinstance(step, Reject) or _is_news(folder, step) for step in steps):
        with writable(partition, run, mountinfo):
            for name in unwiped:
                _wipe(folder / name)
            outcomes = [_carry_out(step, folder, notes) for step in steps]
    else:
        outcomes = [
            Outcome(name=step.name, result="rejected", detail=step.where)
            for step in steps
            if isinstance(step, Reject)
        ]
    _forget_others(notes, {file.name for file in found})
    return outcomes


def read_folder(folder: Path) -> tuple[list[Found], list[str]]:
    """Files in `folder` that are for us, and the names of those taken over whose secrets are still in them."""
    found, unwiped = [], []
    for name in _names(folder):
        kind = kind_of(name)
        if kind is not None:
            found.append(_read(folder / name, kind))
        elif kind_of_taken(name) in SECRET and not name.lower().endswith(REJECTED):
            with contextlib.suppress(OSError):
                status = (folder / name).lstat()
                if stat.S_ISREG(status.st_mode) and status.st_size:
                    unwiped.append(name)
    return found, unwiped


def _folder_in(partition: Path) -> Path | None:
    """The folder, in whichever case it is written; a link is none."""
    try:
        entries = sorted(entry.name for entry in partition.iterdir() if entry.name.lower() == FOLDER)
        return next((partition / name for name in entries if not (partition / name).is_symlink()), None)
    except OSError as error:
        _log.info("no boot partition can be read at %s: %s", partition, error.strerror)
        return None


def _names(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number == MAX_ENTRIES:
                    _log.warning("only the first %d files in %s were looked at", MAX_ENTRIES, folder)
                    return
                yield entry.name
    except OSError as error:
        _log.warning("the folder %s cannot be read to its end: %s", folder, error.strerror)


def _read(path: Path, kind: Kind) -> Found:
    try:
        descriptor = os.open(path, _OPEN)
    except OSError as error:
        return Found(
            name=path.name, unreadable="a symbolic link" if path.is_symlink() else f"unreadable ({error.strerror})"
        )
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return Found(name=path.name, unreadable="no file")
        # One byte more than is allowed, so that too much can be told from just enough.
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return Found(name=path.name, data=file.read(LIMIT_BYTES[kind] + 1))
    except OSError as error:
        return Found(name=path.name, unreadable=f"unreadable ({error.strerror})")
    finally:
        os.close(descriptor)


def _noted(notes: StateFile[Noted]) -> dict[str, str]:
    return dict(notes.load(Noted).taken)


def _carry_out(step: Step, folder: Path, notes: StateFile[Noted]) -> Outcome:
    if isinstance(step, Reject):
        with contextlib.suppress(OSError):
            _write_if_new(folder / f"{step.name}{REJECTED}", explanation(step).encode())
        return Outcome(name=step.name, result="rejected", detail=step.where)
    if isinstance(step, Take):
        try:
            for write in step.writes:
                put(write)
        except (OSError, LookupError) as error:
            # No fault of the file: it stays where it is and is tried at the next boot.
            return Outcome(name=step.name, result="failed", detail=_why(error))
        _note(notes, _noted(notes) | {step.name: step.digest})
    try:
        _rename(step, folder)
    except OSError as error:
        return Outcome(name=step.name, result="finished", detail=f"it keeps its name: {error.strerror}")
    _note(notes, {name: digest for name, digest in _noted(notes).items() if name != step.name})
    return Outcome(name=step.name, result="taken" if isinstance(step, Take) else "finished")


def _rename(step: Take | Finish, folder: Path) -> None:
    taken = folder / f"{step.name}{TAKEN}"
    (folder / step.name).replace(taken)
    sync_folder(folder)
    # After the rename: half of a wiped file under its old name would be rejected at the next boot.
    if step.secret:
        _wipe(taken)
    (folder / f"{step.name}{REJECTED}").unlink(missing_ok=True)


def _wipe(path: Path) -> None:
    """Overwrite a file where it lies, then empty it. A card that moves its blocks may keep the old ones all the same;
    the documentation says so."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"\0" * os.fstat(descriptor).st_size)
            os.fsync(descriptor)
            os.ftruncate(descriptor, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        _log.warning("what was in %s could not be wiped: %s", path, error.strerror)


def put(write: Write) -> None:
    """Put a file in place, with its mode and group. A file that is the same already is not written again. Raises
    `OSError`, and `KeyError` for a group that there is not."""
    write.path.parent.mkdir(parents=True, exist_ok=True)
    data = write.text.encode()
    if not _is_same(write.path, data):
        # Closed until it has its group.
        write_atomic(write.path, data, write.mode & 0o700 if write.group else write.mode)
    if write.group:
        shutil.chown(write.path, group=write.group)
    write.path.chmod(write.mode)


def _is_same(path: Path, data: bytes) -> bool:
    try:
        return not path.is_symlink() and path.read_bytes() == data
    except OSError:
        return False


def _write_if_new(path: Path, data: bytes) -> None:
    if not _is_same(path, data):
        write_atomic(path, data)


def _is_news(folder: Path, step: Step) -> bool:
    return isinstance(step, Reject) and not _is_same(folder / f"{step.name}{REJECTED}", explanation(step).encode())


def _note(notes: StateFile[Noted], taken: dict[str, str]) -> None:
    if taken != _noted(notes):
        notes.save(Noted(taken=taken))


def _forget_others(notes: StateFile[Noted], present: set[str]) -> None:
    """A file that is gone may come back with the same content, and is then meant to be taken over again."""
    _note(notes, {name: digest for name, digest in _noted(notes).items() if name in present})


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'} cannot be written: {error.strerror}"
    return f"there is no such group: {error}"
