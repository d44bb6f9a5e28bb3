"""Is everything that the recipes need to be had, and new enough for what `pyproject.toml` asks for?"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from yocto.checks.finding import Finding
from yocto.checks.layer import Layer
from yocto.checks.recipe import Recipe
from yocto.checks.upstream import LIST, Upstream

_VARIABLES = ("DEPENDS", "RDEPENDS", "RRECOMMENDS", "IMAGE_INSTALL")
# Distributions whose recipe is not called python3-NAME.
_RECIPES = {"onnxruntime": "python3-onnxruntime-bin"}


def check_resolved(layer: Layer, listed: Mapping[str, Upstream]) -> list[Finding]:
    """Whether each dependency is a recipe or package of the layer, or listed as one of the layers below."""
    own = layer.provides()
    findings = []
    for recipe in layer.recipes:
        for name in sorted({recipe.expand(word) for variable in _VARIABLES for word in recipe.words(variable)}):
            if not name.startswith("${") and name not in own and name.removesuffix("-native") not in listed:
                findings.append(
                    Finding(
                        path=recipe.path,
                        message=f"{name} is neither made by this layer nor listed in {LIST.name}",
                    )
                )
    return findings


def check_requirements(layer: Layer, listed: Mapping[str, Upstream], pyproject: Path) -> list[Finding]:
    """Whether `magnitude` depends at run time on all that `pyproject.toml` requires, in versions within its bounds;
    the same for what the extra `import` requires and the packagegroup. Raises `OSError`."""
    project = tomllib.loads(pyproject.read_text("utf-8"))["project"]
    findings = []
    for name, requirements in (
        ("magnitude", project["dependencies"]),
        ("packagegroup-magnitude", project["optional-dependencies"]["import"]),
    ):
        recipe = layer.recipe(name)
        for text in requirements:
            for message in _requirement(Requirement(text), recipe, layer, listed):
                findings.append(Finding(path=recipe.path, message=message))
    return findings


def _requirement(
    requirement: Requirement, recipe: Recipe, layer: Layer, listed: Mapping[str, Upstream]
) -> Iterator[str]:
    package = f"python3-{requirement.name.lower()}"
    if package not in recipe.words("RDEPENDS"):
        yield f"pyproject.toml requires {requirement}, and there is no RDEPENDS on {package}"
    version = _version(_RECIPES.get(requirement.name, package), layer, listed)
    if version is None:
        yield f"no recipe is known for {requirement}"
    elif version not in requirement.specifier:
        yield f"pyproject.toml requires {requirement}, and the recipe has {version}"


def _version(name: str, layer: Layer, listed: Mapping[str, Upstream]) -> Version | None:
    own = layer.provides()
    try:
        if name in own:
            return Version(own[name].version)
        return Version(listed[name].version) if name in listed else None
    except InvalidVersion:
        return None


def check_wheels(layer: Layer, listed: Mapping[str, Upstream]) -> list[Finding]:
    """Whether wheels with machine code are for the Python of the series."""
    python = "cp" + "".join(listed["python3"].version.split(".")[:2])
    findings = []
    for recipe in layer.recipes:
        for (variable, machine), tags in recipe.flags.items():
            if variable != "WHEEL_TAGS":
                continue
            interpreter, abi, platform = tags.split("-")
            if not re.search(rf"_{machine}$", platform):
                findings.append(Finding(path=recipe.path, message=f"WHEEL_TAGS[{machine}] is for {platform}"))
            if abi != "abi3" and {interpreter, abi} != {python}:
                findings.append(
                    Finding(
                        path=recipe.path, message=f"the wheel is for {interpreter}-{abi}, the series has {python}"
                    )
                )
    return findings
