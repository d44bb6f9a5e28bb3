"""Does the layer pin what this repository is: version, revision, embedded models?"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from yocto.checks.finding import Finding
from yocto.checks.layer import Layer, series

_VERSION = re.compile(r'^__version__ = "(.+)"$', re.M)
_MOVE_ON = "Set SRCREV to a commit that has them: git rev-parse HEAD"


def check_pins(layer: Layer, checkout: Path) -> list[Finding]:
    """Whether version, models and series are those of `checkout`. Raises `OSError`."""
    return [*_version(layer, checkout), *_models(layer, checkout), *_series(layer)]


def _version(layer: Layer, checkout: Path) -> list[Finding]:
    recipe = layer.recipe("magnitude")
    found = _VERSION.search((checkout / "service/magnitude/__init__.py").read_text())
    version = found[1] if found else "unknown"
    distro = layer.root / "conf/distro/magnitude-os.conf"
    findings = []
    if recipe.version != version:
        findings.append(Finding(path=recipe.path, message=f"it is {recipe.version}, the service is {version}"))
    if f'DISTRO_VERSION = "{version}"' not in distro.read_text():
        findings.append(Finding(path=distro, message=f"DISTRO_VERSION is not that of the service, {version}"))
    return findings


def _models(layer: Layer, checkout: Path) -> list[Finding]:
    """The recipe fetches what `scripts/fetch_models.py` does."""
    recipe = layer.recipe("magnitude-models")
    ours = set(re.findall(r'sha256="([0-9a-f]{64})"', (checkout / "scripts/fetch_models.py").read_text()))
    theirs = {value for (variable, flag), value in recipe.flags.items() if variable == "SRC_URI"}
    if ours != theirs:
        return [Finding(path=recipe.path, message="its sums are not those of scripts/fetch_models.py")]
    return []


def _series(layer: Layer) -> list[Finding]:
    """The distribution says which series its images are of; layer.conf decides."""
    distro = layer.root / "conf/distro/magnitude-os.conf"
    named = series(layer)
    if f'DISTRO_CODENAME = "{named}"' not in distro.read_text():
        return [Finding(path=distro, message=f"DISTRO_CODENAME is not the series of layer.conf, {named}")]
    return []


def check_revision(layer: Layer, checkout: Path) -> list[Finding]:
    """Whether the pinned revision is in the history of `checkout`, which has to be a git repository with its whole
    history (a revision that nobody can fetch builds nowhere), and is of the recipe's version, and has the files that
    the recipe takes out of it."""
    recipe = layer.recipe("magnitude")
    revision = recipe.values["SRCREV"]
    if _git(checkout, "merge-base", "--is-ancestor", revision, "HEAD") is None:
        return [
            Finding(
                path=recipe.path,
                message=f"the revision {revision} is not in the history of {checkout}",
                hint=_MOVE_ON,
            )
        ]
    findings = []
    found = _VERSION.search(_git(checkout, "show", f"{revision}:service/magnitude/__init__.py") or "")
    version = found[1] if found else "unknown"
    if version != recipe.version:
        findings.append(
            Finding(
                path=recipe.path,
                message=f"it is {recipe.version}, the service at the revision {revision} is {version}",
                hint=_MOVE_ON,
            )
        )
    for name in sorted(set(re.findall(r"\$\{S\}/([\w./-]+)", recipe.path.read_text()))):
        if _git(checkout, "cat-file", "-e", f"{revision}:{name}") is None:
            findings.append(
                Finding(path=recipe.path, message=f"the revision {revision} has no {name}", hint=_MOVE_ON)
            )
    return findings


def _git(checkout: Path, *words: str) -> str | None:
    """What git says; None when it fails."""
    done = subprocess.run(("git", "-C", str(checkout), *words), capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None
