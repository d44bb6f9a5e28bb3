"""The layer as the checks see it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from yocto.checks.recipe import Recipe, read_recipe

CHECKOUT = Path(__file__).resolve().parents[2]
LAYER = CHECKOUT / "yocto/meta-magnitude"

# Suffixes under which a package belongs to its recipe, beside those that the recipe names itself.
_USUAL_SUFFIXES = ("", "-dev", "-dbg", "-doc", "-src")


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer's folder and recipes, those of `dynamic-layers` included."""

    root: Path
    recipes: tuple[Recipe, ...]

    def provides(self) -> Mapping[str, Recipe]:
        """Every name that a dependency may have, with the recipe behind it."""
        names: dict[str, Recipe] = {}
        for recipe in self.recipes:
            own = [recipe.name + suffix for suffix in _USUAL_SUFFIXES]
            for variable in ("PACKAGES", "PACKAGE_BEFORE_PN", "RPROVIDES", "PROVIDES"):
                own += [recipe.expand(word) for word in recipe.words(variable)]
            if "native" in recipe.words("BBCLASSEXTEND") or "magnitude_wheel" in recipe.inherits:
                own.append(f"{recipe.name}-native")
            names.update(dict.fromkeys(own, recipe))
        return names

    def recipe(self, name: str) -> Recipe:
        """The recipe `name`. Raises `KeyError`."""
        return {recipe.name: recipe for recipe in self.recipes}[name]


def series(layer: Layer) -> str:
    """The one series that the layer says it works with: what the linter, BitBake's layers and the texts follow.
    Raises `OSError`, `ValueError`."""
    (named,) = re.findall(
        r'(?m)^LAYERSERIES_COMPAT_\w+ = "(\w+)"$', layer.root.joinpath("conf/layer.conf").read_text()
    )
    return str(named)


def read_layer(root: Path = LAYER) -> Layer:
    """The layer in the folder `root`. Raises `OSError`."""
    paths = [*root.glob("recipes-*/*/*.bb"), *root.glob("dynamic-layers/*/recipes-*/*/*.bb")]
    return Layer(root=root, recipes=tuple(read_recipe(path) for path in sorted(paths)))
