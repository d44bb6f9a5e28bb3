"""Do the recipes name sources that are there, with sums that can be sums, and licences that are right?"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from yocto.checks.finding import Finding
from yocto.checks.layer import Layer
from yocto.checks.recipe import Recipe

_SHA256 = re.compile(r"[0-9a-f]{64}")
_MD5 = re.compile(r"[0-9a-f]{32}")
_REVISION = re.compile(r"[0-9a-f]{40}")
# openembedded-core's copies of licence texts: md5sum meta/files/common-licenses/NAME. Where those are at hand,
# they are asked.
_COMMON_LICENCES = {
    "Apache-2.0": "89aea4e17d99a7cacdbeed46a0096b10",
    "MIT": "0835ade698e0bcf8506ecda2f7b4f302",
}
_WHEEL = "magnitude_wheel"


def check_sources(layer: Layer, checkout: Path, core: Path | None = None) -> list[Finding]:
    """All findings about sources, sums and licences. `core` is openembedded-core's folder, where there is one."""
    findings = []
    for recipe in layer.recipes:
        for message in (*_local_files(recipe), *_sums(recipe), *_licence(recipe, checkout, core)):
            findings.append(Finding(path=recipe.path, message=message))
    return findings


def _local_files(recipe: Recipe) -> Iterator[str]:
    folders = [recipe.path.parent / name for name in ("files", recipe.name, f"{recipe.name}-{recipe.version}")]
    for word in recipe.words("SRC_URI"):
        name = recipe.expand(word.partition(";")[0])
        if name.startswith("file://"):
            name = name.removeprefix("file://")
            if "${" not in name and not any((folder / name).exists() for folder in folders):
                yield f"SRC_URI names {name}, which is in none of {', '.join(f.name + '/' for f in folders)}"


def _sums(recipe: Recipe) -> Iterator[str]:
    for (variable, flag), value in recipe.flags.items():
        if variable == "SRC_URI" and flag.endswith("sha256sum") and not _SHA256.fullmatch(value):
            yield f"SRC_URI[{flag}] is no SHA-256: {value!r}"
    for name in sorted(_named_sources(recipe)):
        flag = f"{name}.sha256sum" if name else "sha256sum"
        if ("SRC_URI", flag) not in recipe.flags:
            yield f"there is no SRC_URI[{flag}]"
    revision = recipe.values.get("SRCREV")
    by_git = any("git://" in word for word in (*recipe.words("SRC_URI"), *recipe.words("MAGNITUDE_GIT_URI")))
    if by_git and (revision is None or not _REVISION.fullmatch(revision)):
        yield f"SRCREV is no full revision: {revision!r}"


def _named_sources(recipe: Recipe) -> set[str]:
    """Names of what is downloaded and has to have a sum; the empty name is the only source's."""
    if _WHEEL in recipe.inherits:
        machines = {flag for variable, flag in recipe.flags if variable == "WHEEL_TAGS"}
        return {f"wheel-{machine}" for machine in machines} or {"wheel"}
    names = {
        found[1]
        for word in (*recipe.words("SRC_URI"), *recipe.words("PYPI_SRC_URI"))
        if (found := re.search(r";name=([\w-]+)", word))
    }
    if "pypi" in recipe.inherits and not names:
        names.add("")
    return names


def _licence(recipe: Recipe, checkout: Path, core: Path | None) -> Iterator[str]:
    # A packagegroup has one by its class, and what requires another recipe has that one's.
    if "LICENSE" not in recipe.values and "packagegroup" not in recipe.inherits and not recipe.requires:
        yield "there is no LICENSE"
    for word in recipe.words("LIC_FILES_CHKSUM"):
        name, _, rest = word.partition(";")
        found = re.search(r"md5=(\w*)", rest)
        if found is None or not _MD5.fullmatch(found[1]):
            yield f"LIC_FILES_CHKSUM of {name} has no MD5"
        elif (right := _licence_md5(name, recipe, checkout, core)) not in {None, found[1]}:
            yield f"the MD5 of {name} is {right}, not {found[1]}"


def _licence_md5(name: str, recipe: Recipe, checkout: Path, core: Path | None) -> str | None:
    """What the sum has to be, where the text is at hand."""
    if found := re.fullmatch(r"file://\$\{COMMON_LICENSE_DIR\}/([\w.+-]+)", name):
        if core is not None:
            return _md5(core / "files/common-licenses" / found[1])
        return _COMMON_LICENCES.get(found[1], "unknown: add it to the list in yocto/checks/sources.py")
    if recipe.name == "magnitude" and "${" not in name:
        return _md5(checkout / name.removeprefix("file://"))
    local = recipe.path.parent / "files" / name.removeprefix("file://").removeprefix("${UNPACKDIR}/")
    return _md5(local) if local.is_file() else None


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() if path.is_file() else "of no file"
