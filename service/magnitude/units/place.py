"""Putting files below a root and taking them away again.

A list of what was put there lies beside the helpers, so that an upgrade and a removal take away what is ours and
nothing else: drop-ins of the admin below /etc are never looked at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from magnitude.persist import write_atomic
from magnitude.units.layout import ETC_FOLDERS, InstalledFile

LIST_NAME = "installed-units"

Change = Literal["new", "changed", "unchanged", "removed"]


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """What happened, or would happen, to the file `path`."""

    path: Path
    change: Change


def list_path(root: Path, prefix: str) -> Path:
    """The file that names what an earlier run put below `root`."""
    return below(root, f"{prefix.rstrip('/')}/lib/magnitude/{LIST_NAME}")


def below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def place(files: Sequence[InstalledFile], root: Path, prefix: str, *, dry_run: bool = False) -> list[Placed]:
    """Bring `files` below `root` and remove those of an earlier run that are no longer among them.

    Each file is replaced as a whole. Raises `OSError`.
    """
    paths = [below(root, file.path) for file in files]
    placed = [
        Placed(path=path, change=_put(file, path, dry_run=dry_run)) for file, path in zip(files, paths, strict=True)
    ]
    stale = [path for path in _listed(root, prefix) if path not in set(paths)]
    placed += _remove(stale, dry_run=dry_run)
    if not dry_run:
        listed = list_path(root, prefix)
        listed.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(listed, "".join(f"{file.path}\n" for file in files).encode())
    return placed


def installed(root: Path, prefix: str) -> list[InstalledFile]:
    """What an earlier run put below `root`, as it is now; what is gone or no text is left out."""
    found = []
    for line, path in zip(_listed_lines(root, prefix), _listed(root, prefix), strict=True):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if not path.is_symlink():
                found.append(InstalledFile(path=line, text=path.read_text("utf-8"), mode=path.stat().st_mode & 0o777))
    return found


def remove(root: Path, prefix: str, *, dry_run: bool = False) -> list[Placed]:
    """Take away what earlier runs put below `root`, and the folders that are empty then. Raises `OSError`."""
    gone = _remove([*_listed(root, prefix), list_path(root, prefix)], dry_run=dry_run)
    if not dry_run:
        for folder in {placed.path.parent for placed in gone}:
            # Folders of the system are not empty, except in an image of nothing else.
            with contextlib.suppress(OSError):
                folder.rmdir()
    return gone


def _put(file: InstalledFile, path: Path, *, dry_run: bool) -> Change:
    if file.link_to:
        return _put_link(file.link_to, path, dry_run=dry_run)
    data = file.text.encode()
    try:
        change: Change = "unchanged" if path.read_bytes() == data else "changed"
    except OSError:
        change = "new"
    if not dry_run:
        if change != "unchanged":
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data, file.mode)
        path.chmod(file.mode)
    return change


def _put_link(target: str, path: Path, *, dry_run: bool) -> Change:
    if path.is_symlink() and str(path.readlink()) == target:
        return "unchanged"
    change: Change = "changed" if path.is_symlink() or path.exists() else "new"
    if not dry_run:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)
    return change


def _remove(paths: Iterable[Path], *, dry_run: bool) -> list[Placed]:
    found = [path for path in paths if path.is_file() or path.is_symlink()]
    if not dry_run:
        for path in found:
            path.unlink()
    return [Placed(path=path, change="removed") for path in found]


def _listed(root: Path, prefix: str) -> list[Path]:
    return [below(root, line) for line in _listed_lines(root, prefix)]


def _listed_lines(root: Path, prefix: str) -> list[str]:
    try:
        lines = list_path(root, prefix).read_text("utf-8").splitlines()
    except OSError:
        return []
    # A path that leads elsewhere was not written by `place`.
    folders = (f"{prefix.rstrip('/')}/lib/", *ETC_FOLDERS)
    return [line for line in lines if line.startswith(folders) and ".." not in line.split("/")]
