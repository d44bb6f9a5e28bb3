"""Does the layer pin what this repository is: version, revision, embedded models?"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from yocto.checks.finding import Finding
from yocto.checks.layer import Layer

SERIES = "wrynose"


def check_pins(layer: Layer, checkout: Path) -> list[Finding]:
    """Whether version, models and series are those of `checkout`. Raises `OSError`."""
    return [*_version(layer, checkout), *_models(layer, checkout), *_series(layer)]


def _version(layer: Layer, checkout: Path) -> list[Finding]:
    recipe = layer.recipe("magnitude")
    found = re.search(r'^__version__ = "(.+)"$', (checkout / "service/magnitude/__init__.py").read_text(), re.M)
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
    conf = layer.root / "conf/layer.conf"
    if f'LAYERSERIES_COMPAT_magnitude = "{SERIES}"' not in conf.read_text():
        return [Finding(path=conf, message=f"it does not say that the layer is for {SERIES}")]
    return []


def check_revision(layer: Layer, checkout: Path) -> list[Finding]:
    """Whether the pinned revision is in the history of `checkout`, which has to be a git repository with its whole
    history: a revision that nobody can fetch builds nowhere."""
    recipe = layer.recipe("magnitude")
    revision = recipe.values["SRCREV"]
    asked = subprocess.run(
        ("git", "-C", str(checkout), "merge-base", "--is-ancestor", revision, "HEAD"),
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode == 0:
        return []
    return [
        Finding(
            path=recipe.path,
            message=f"the revision {revision} is not in the history of {checkout}",
            hint="Pin one that is: git rev-parse HEAD",
        )
    ]
