"""What is kept between builds is made anew when anything that it is made of has changed."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tested_image import MADE_OF

from image.guest import tree, workshop
from image.guest.build import keys_of
from image.guest.debian import CHECKOUT, contents
from image.guest.recipe import recipe_of

STEP = """\
import json

PACKAGES = ("one", "two")
OTHER = "nobody names it"


class Tools:
    def name(self) -> str:
        return "hammer"


def helper(names):
    # of what is in the list
    return [json.dumps(name) for name in names]


def spoken(text):
    return text.upper()


def make(folder):
    spoken("now")
    return helper(PACKAGES), Tools().name()
"""


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a text as a module, under the same name each time."""
    numbers = itertools.count()

    def loaded(text: str) -> ModuleType:
        path = tmp_path / f"{next(numbers)}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("a_step", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["a_step"] = module
        spec.loader.exec_module(module)
        return module

    yield loaded
    sys.modules.pop("a_step", None)


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ('"two")', '"three")', True),
        ("json.dumps(name)", "json.dumps(name + name)", True),
        ('"hammer"', '"saw"', True),
        ("Tools().name()", "Tools().name() * 2", True),
        ('"nobody names it"', '"still nobody"', False),
        ("# of what is in the list", "# another comment", False),
        ("text.upper()", "text.lower()", False),
    ],
)
def test_a_recipe_changes_with_all_that_a_step_comes_to_and_with_nothing_else(
    load: Callable[[str], ModuleType], old: str, new: str, changes: bool
) -> None:
    before = load(STEP)
    first = recipe_of(before.make, without=(before.spoken,))
    assert old in STEP
    after = load(STEP.replace(old, new))
    assert (recipe_of(after.make, without=(after.spoken,)) != first) == changes


@pytest.mark.parametrize(
    ("step", "made_of"),
    [
        (workshop.make_workshop, {"workshop.PACKAGES", "debian.make_root", "debian.apt_sources", "debian.LEFT_OUT"}),
        (tree.make_base, {"tree.PACKAGES", "tree.SUITE", "debian.make_root", "debian.apt_sources"}),
        (tree.make_site, {"debian.wheel_options", "debian.GLIBC_MINORS", "debian.python_of", "tree.MACHINES"}),
        (
            tree.fetch_boot_parts,
            {
                *("tree.KERNELS", "tree.GRUB_PACKAGES", "debian.fetch_packages", "kernel.FETCH", "kernel.MODULES"),
                *("kernel.make_initrd", "kernel.UnpackedKernel", "trimming.MODULES", "trimming.trim_modules"),
            },
        ),
    ],
)
def test_what_is_kept_is_kept_by_all_of_its_recipe(step: Callable[..., object], made_of: set[str]) -> None:
    names = {text.partition(" ")[0].removeprefix("image.guest.") for text in recipe_of(step)}
    assert made_of <= names
    assert not [name for name in names if name.startswith(("sys.", "subprocess."))]


def test_tools_are_kept_once_and_the_rest_for_each_architecture() -> None:
    amd64, arm64 = keys_of("amd64"), keys_of("arm64")
    assert amd64 == keys_of("amd64")
    assert amd64.tools == arm64.tools
    assert not set(amd64[1:]) & set(arm64[1:])


def test_images_under_test_are_kept_by_every_file_of_the_checkout_that_goes_into_them() -> None:
    kept = {line.partition(" ")[0] for line in contents(MADE_OF)}
    # Where the builder of these images takes anything from.
    text = (CHECKOUT / "tests/system/image/tested_image.py").read_text()
    modules = {
        "broken_slots": "tests/system/image",
        "guest_image": "tests/system/boot",
        "tiny_sources": "tests/models",
    }
    for module, folder in modules.items():
        assert f"from {module} import" in text
        assert f"{folder}/{module}.py" in kept
    assert {"tests/system/boot/guest_agent.py", "tests/system/image/ready.py", "pyproject.toml"} <= kept
    assert "image/guest/files/init" in kept
    assert any(name.startswith("tests/golden/llama_tied/") for name in kept)
