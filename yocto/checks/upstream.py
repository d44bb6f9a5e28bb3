"""What the recipes use of the layers below, as `upstream.yaml` lists it, and whether those layers have it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from yocto.checks.finding import Finding

LIST = Path(__file__).parent / "upstream.yaml"
# Folder of a layer below the folder that holds all clones.
FOLDERS = {
    "core": "openembedded-core/meta",
    "openembedded-layer": "meta-openembedded/meta-oe",
    "meta-python": "meta-openembedded/meta-python",
    "networking-layer": "meta-openembedded/meta-networking",
    "rauc": "meta-rauc",
}


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """`name` is what a recipe of ours names; `recipe` of `layer` makes it, in `version`."""

    name: str
    layer: str
    recipe: str
    version: str


def read_upstream(path: Path = LIST) -> dict[str, Upstream]:
    """Everything in the list, by name. Raises `OSError`, `msgspec.ValidationError`."""
    content = msgspec.yaml.decode(path.read_bytes(), type=dict[str, dict[str, str]])
    return {entry.name: entry for layer, names in content.items() for entry in _entries(layer, names)}


def _entries(layer: str, names: Mapping[str, str]) -> Iterator[Upstream]:
    """`name: version`, or `name: recipe version` where the recipe is called otherwise."""
    for name, text in names.items():
        recipe, _, version = text.rpartition(" ")
        yield Upstream(name=name, layer=layer, recipe=recipe or name, version=version)


def check_upstream(listed: Mapping[str, Upstream], layers: Path) -> list[Finding]:
    """Whether the clones below `layers` have what is listed, in that version. Layers that are not there are passed
    over; `missing_layers` names them."""
    findings = []
    for entry in listed.values():
        folder = layers / FOLDERS[entry.layer]
        if not folder.is_dir():
            continue
        versions = sorted(versions_of(folder, entry.recipe))
        if not versions:
            findings.append(Finding(path=LIST, message=f"{entry.layer} has no recipe {entry.recipe}"))
        elif entry.version not in versions:
            findings.append(
                Finding(
                    path=LIST,
                    message=f"{entry.recipe} is {entry.version} here and {', '.join(versions)} in {entry.layer}",
                )
            )
    return findings


def missing_layers(listed: Mapping[str, Upstream], layers: Path) -> list[str]:
    """Layers of the list that are not below `layers`."""
    return sorted({entry.layer for entry in listed.values() if not (layers / FOLDERS[entry.layer]).is_dir()})


def versions_of(layer: Path, recipe: str) -> set[str]:
    """The versions in which `layer` has `recipe`."""
    found = set()
    for path in layer.glob(f"recipes-*/*/{recipe}[_.]*bb"):
        if match := re.fullmatch(rf"{re.escape(recipe)}(?:_(.+))?\.bb", path.name):
            found.add(match[1] or "")
    return found
