"""Does the layer pin what this repository is: version, revision, embedded models?"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

from yocto.checks.finding import Finding
from yocto.checks.layer import Layer, series

_VERSION = re.compile(r'^__version__ = "(.+)"$', re.M)
# What the layer counts on in the service's source: its tests read these in the checkout, while an image has those of
# the pinned revision. Which units there are, and which of them start; the code that puts them in place; which
# programs are called at boot and in updates. (Of other code any revision will do.)
_COUNTED_ON = ("systemd", "service/magnitude/firstboot", "service/magnitude/units", "service/magnitude/update")
_MOVE_ON = "Set SRCREV to a commit that has them: git rev-parse HEAD"


def check_pins(layer: Layer, checkout: Path) -> list[Finding]:
    """Whether version, models and series are those of `checkout`. Raises `OSError`."""
    return [*_version(layer, checkout), *_revisions(layer), *_models(layer, checkout), *_series(layer)]


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


def _revisions(layer: Layer) -> list[Finding]:
    """All that is built from this repository is of one revision."""
    pinned = layer.recipe("magnitude").values.get("SRCREV")
    return [
        Finding(path=recipe.path, message=f"SRCREV is {recipe.values.get('SRCREV')}, that of the service {pinned}")
        for recipe in layer.recipes
        if "MAGNITUDE_GIT_URI" in recipe.values and recipe.values.get("SRCREV") != pinned
    ]


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


def why_no_history(checkout: Path) -> str:
    """Why nothing can be said of the pinned revision; empty when something can."""
    shallow = _git(checkout, "rev-parse", "--is-shallow-repository")
    if shallow is None:
        return "this is no git repository, or git does not read it"
    return "this clone is shallow: git fetch --unshallow" if shallow.strip() == "true" else ""


def check_revision(layer: Layer, checkout: Path) -> list[Finding]:
    """Whether the pinned revision is in the history of `checkout` (one that nobody can fetch builds nowhere), is of
    the recipe's version, and is as the last commit in all that the layer counts on. `checkout` has to be a git
    repository with its whole history."""
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
    messages = []
    found = _VERSION.search(_git(checkout, "show", f"{revision}:service/magnitude/__init__.py") or "")
    version = found[1] if found else "unknown"
    if version != recipe.version:
        messages.append(f"it is {recipe.version}, the service at the revision {revision} is {version}")
    taken = sorted(set(re.findall(r"\$\{S\}/([\w./-]+)", recipe.path.read_text())))
    missing = [name for name in taken if _git(checkout, "cat-file", "-e", f"{revision}:{name}") is None]
    messages += [f"the revision {revision} has no {name}" for name in missing]
    changed = (_git(checkout, "diff", "--name-only", revision, "HEAD", "--", *taken, *_COUNTED_ON) or "").split("\n")
    messages += [f"the revision {revision} has an older {name}" for name in changed if name and name not in missing]
    if _package(checkout, revision) != _package(checkout, "HEAD"):
        messages.append(f"the revision {revision} requires other packages, or is built in another way")
    return [Finding(path=recipe.path, message=message, hint=_MOVE_ON) for message in messages]


def _package(checkout: Path, revision: str) -> dict[str, object]:
    """Of `pyproject.toml` at the revision what RDEPENDS and the recipe's classes have to fit."""
    content = tomllib.loads(_git(checkout, "show", f"{revision}:pyproject.toml") or "")
    project = content.get("project", {})
    return {
        "requires": project.get("dependencies"),
        "import": project.get("optional-dependencies", {}).get("import"),
        "scripts": project.get("scripts"),
        "built": (content.get("build-system"), content.get("tool", {}).get("scikit-build")),
    }


def _git(checkout: Path, *words: str) -> str | None:
    """What git says; None when it fails."""
    done = subprocess.run(("git", "-C", str(checkout), *words), capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None
