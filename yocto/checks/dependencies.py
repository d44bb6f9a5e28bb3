"""Is everything that the recipes need to be had, and new enough for what `pyproject.toml` asks for?"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from yocto.checks.finding import Finding
from yocto.checks.layer import Layer
from yocto.checks.recipe import Recipe
from yocto.checks.upstream import LIST, Upstream

_VARIABLES = ("DEPENDS", "RDEPENDS", "RRECOMMENDS", "IMAGE_INSTALL")
# Distributions whose recipe is not called python3-NAME.
_RECIPES = {"onnxruntime": "python3-onnxruntime-bin"}


def installed(project: str) -> Distribution | None:
    """What this Python has of a project."""
    try:
        return distribution(project)
    except PackageNotFoundError:
        return None


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


def check_tested(
    layer: Layer, listed: Mapping[str, Upstream], tested: Callable[[str], Distribution | None]
) -> tuple[list[Finding], list[str]]:
    """Whether an image has the versions that the tests run with. `tested` is what they have of a project, by its
    name.

    Faults are a recipe that is newer, so that nobody has tested it, and one whose own requirements the recipes do not
    meet. That the tests have something newer is said and is no fault: projects publish on any day, and a recipe is
    moved on by hand.
    """
    findings: list[Finding] = []
    older: list[str] = []
    for recipe in layer.recipes:
        if not {"magnitude_wheel", "pypi"} & set(recipe.inherits) or not recipe.name.startswith("python3-"):
            continue
        project = recipe.values.get("PYPI_PACKAGE", recipe.name.removeprefix("python3-"))
        found = tested(project)
        if found is None:
            older.append(f"{recipe.name} {recipe.version}: {project} is not installed where the tests run")
        elif Version(recipe.version) > Version(found.version):
            findings.append(Finding(path=recipe.path, message=f"the tests run with {project} {found.version}"))
        elif Version(recipe.version) < Version(found.version):
            older.append(f"{recipe.name} {recipe.version}: the tests run with {found.version}")
        else:
            for text in found.requires or ():
                findings += _of_wheel(Requirement(text), recipe, layer, listed)
    return findings, older


def _of_wheel(
    requirement: Requirement, recipe: Recipe, layer: Layer, listed: Mapping[str, Upstream]
) -> Iterator[Finding]:
    """What a project requires of others, where there is a recipe for them (the service does without some)."""
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return
    name = f"python3-{canonicalize_name(requirement.name)}"
    version = _version(name, layer, listed)
    if version is not None and version not in requirement.specifier:
        yield Finding(path=recipe.path, message=f"it requires {requirement}, and the recipe of {name} has {version}")


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
