"""The layer's own recipes pass the checks that need nothing but the checkout."""

from __future__ import annotations

import pytest

from image.debian.left_out import PYTHON_PACKAGES
from yocto.checks.command import lint, sanity
from yocto.checks.dependencies import check_tested, installed
from yocto.checks.layer import CHECKOUT, LAYER, read_layer
from yocto.checks.pins import check_revision, why_no_history
from yocto.checks.upstream import read_upstream


def test_the_recipes_are_sound_by_themselves() -> None:
    assert sanity(read_layer(), CHECKOUT) == []


def test_the_linter_finds_nothing_in_the_recipes() -> None:
    assert lint(read_layer()) == []


def test_libraries_of_the_image_have_been_tested_in_no_older_version() -> None:
    findings, older = check_tested(read_layer(), read_upstream(), installed)
    assert findings == []
    if older:
        pytest.skip("not the versions that these tests run with: " + "; ".join(older))


def test_the_pinned_revision_has_what_these_tests_have_read_in_the_checkout() -> None:
    """Red after a commit that changes what the layer counts on, until the next one moves the pin: SRCREV."""
    if reason := why_no_history(CHECKOUT):
        pytest.skip(reason)
    assert [str(finding) for finding in check_revision(read_layer(), CHECKOUT)] == []


def test_every_recipe_and_append_says_what_it_is_for() -> None:
    for path in LAYER.rglob("*.bb"):
        assert "SUMMARY" in path.read_text(), path


def test_no_file_of_the_layer_names_a_host_that_packages_are_downloaded_from() -> None:
    for path in LAYER.rglob("*"):
        if path.is_file():
            assert "pythonhosted" not in path.read_text(), path
            assert "pypi.org" not in path.read_text(), path


def test_the_run_times_library_for_c_stays_out_of_the_image_as_out_of_packages() -> None:
    """Each build has a list of its own of what ONNX Runtime brings for a developer's desk."""
    (recipe,) = LAYER.rglob("python3-onnxruntime-bin_*.bb")
    tools = recipe.read_text().partition('FILES:${PN}-tools = "')[2].partition('"')[0]
    left_out = {name.removeprefix("${PYTHON_SITEPACKAGES_DIR}/") for name in tools.split() if name != "\\"}
    assert "onnxruntime/capi/libonnxruntime.so*" in left_out
    assert left_out == {name for name in PYTHON_PACKAGES if name.startswith("onnxruntime/")}
