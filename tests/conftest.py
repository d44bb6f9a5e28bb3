"""Fixtures for all tests. This file also puts `tests/` on the import path, for the writers of fake trees."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import magnitude  # noqa: F401  switches ONNX Runtime's telemetry off before a test imports it
from magnitude.kernels.library import KernelLibrary, kernels
from magnitude.kernels.locate import VARIABLE

# No test asserts a time, an example's included. In CI the examples are the same in each run: what is found there must
# be found again by whoever looks for it.
settings.register_profile("magnitude", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("magnitude")

EMBEDDED = ("smollm2-135m-instruct", "all-minilm-l6-v2")


@pytest.fixture(scope="session")
def magnitude_home() -> Path:
    """The home folder with the two embedded models imported, as `scripts/test` prepares it.

    For tests marked `models`. Missing models are an error, not a skip: a suite that leaves out what it cannot find
    would pass without having tested anything.
    """
    checkout = Path(__file__).resolve().parent.parent
    home = Path(os.environ.get("MAGNITUDE_HOME") or checkout / ".magnitude")
    missing = [name for name in EMBEDDED if not (home / "models" / name / "manifest.json").is_file()]
    if missing:
        pytest.fail(
            f"{', '.join(missing)} not found in {home / 'models'}: run scripts/test, which fetches and imports them",
            pytrace=False,
        )
    return home


@pytest.fixture(scope="session")
def magnitude_sources() -> Path:
    """The folder with the unpacked, not yet imported files of the embedded models (MAGNITUDE_SOURCES)."""
    folder = os.environ.get("MAGNITUDE_SOURCES")
    if not folder or not Path(folder).is_dir():
        pytest.fail("MAGNITUDE_SOURCES names no folder: run scripts/test, which sets it", pytrace=False)
    return Path(folder)


@pytest.fixture(scope="session")
def built_kernels() -> Path:
    """The library of kernels with its operators, built for this machine."""
    from kernels import kernel_builds

    reason = kernel_builds.why_no_build()
    headers = None if reason else kernel_builds.onnxruntime_headers()
    if headers is None:
        reason = reason or "ONNX Runtime's C headers cannot be had here (scripts/onnxruntime-headers says why)"
        if os.environ.get("MAGNITUDE_SYSTEM_TESTS") == "required":
            pytest.fail(f"kernels: {reason}", pytrace=False)
        pytest.skip(f"kernels: {reason}")
    return kernel_builds.build_here(f"-DONNXRUNTIME_INCLUDE_DIR={headers}").library


@pytest.fixture
def kernels_here(built_kernels: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelLibrary]:
    """This process, and those that it starts, find the kernels; the pool is one thread wide afterwards."""
    monkeypatch.setenv(VARIABLE, str(built_kernels))
    library = kernels.library()
    yield library
    library.stop_threads()


@pytest.fixture
def no_kernels_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither this process nor those that it starts find kernels."""
    monkeypatch.setenv(VARIABLE, "")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `on_demand` run only when `-m` names them: they take minutes each and repeat what CI has seen."""
    if "on_demand" in config.option.markexpr:
        return
    wanted = [item for item in items if item.get_closest_marker("on_demand") is None]
    config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
    items[:] = wanted
