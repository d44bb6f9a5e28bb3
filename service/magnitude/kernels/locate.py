"""Where the library of kernels lies. Nothing is loaded here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import magnitude.kernels

VARIABLE = "MAGNITUDE_KERNELS"
FILE = "libmagnitude_kernels.so"


def library_path(environment: Mapping[str, str] | None = None, folders: Sequence[Path] | None = None) -> Path | None:
    """The library: the file that `MAGNITUDE_KERNELS` names, else the one in this package's own folder; None where
    that is not there. A variable that is set to nothing switches kernels off."""
    path = _candidate(environment, folders)
    return path if path is not None and path.is_file() else None


def why_not(environment: Mapping[str, str] | None = None, folders: Sequence[Path] | None = None) -> str:
    """Why there is no library, as a sentence without its full stop; "" where there is one."""
    path = _candidate(environment, folders)
    if path is None:
        return f"{VARIABLE} is empty, which switches kernels off"
    if path.is_file():
        return ""
    if path.name == FILE and _named(environment) is None:
        return f"this installation was built without kernels ({path} is missing)"
    return f"{VARIABLE} names {path}, which is no file"


def _named(environment: Mapping[str, str] | None) -> str | None:
    return (os.environ if environment is None else environment).get(VARIABLE)


def _candidate(environment: Mapping[str, str] | None, folders: Sequence[Path] | None) -> Path | None:
    named = _named(environment)
    if named is not None:
        return Path(named).absolute() if named else None
    # An editable installation has two folders of the package: the sources', and one with what was built.
    places = [folder / FILE for folder in folders or map(Path, magnitude.kernels.__path__)]
    return next((place for place in places if place.is_file()), places[-1])
