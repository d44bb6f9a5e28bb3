"""Builds of the kernels. What a machine cannot build is skipped, and the reason stands in pytest's summary."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

import kernel_builds
import pytest
from kernel_builds import Build
from kernel_driver import Driver
from kernel_library import Library


def _leave_out(reason: str) -> None:
    if os.environ.get("MAGNITUDE_SYSTEM_TESTS") == "required":
        pytest.fail(f"kernels: {reason}", pytrace=False)
    pytest.skip(f"kernels: {reason}")


@pytest.fixture(scope="session")
def host_build() -> Build:
    """The library and the driver for this machine."""
    if reason := kernel_builds.why_no_build():
        _leave_out(reason)
    headers = kernel_builds.onnxruntime_headers()
    return kernel_builds.build_here(*([] if headers is None else [f"-DONNXRUNTIME_INCLUDE_DIR={headers}"]))


@pytest.fixture(scope="session")
def operators(host_build: Build) -> Path:
    """The library with its operators for ONNX Runtime."""
    if kernel_builds.onnxruntime_headers() is None:
        _leave_out("ONNX Runtime's C headers cannot be had here (scripts/onnxruntime-headers says why)")
    return host_build.library


@pytest.fixture(scope="session")
def host_driver(host_build: Build) -> Driver:
    return Driver(host_build)


@pytest.fixture(scope="session")
def arm_build() -> Build:
    """The driver for aarch64; `kernel_builds.on_processor` says what runs it."""
    if reason := kernel_builds.why_no_arm_build():
        _leave_out(reason)
    return kernel_builds.build_arm()


@pytest.fixture(scope="session")
def x86_build(host_build: Build) -> Build:
    """The driver for x86-64, to be run on other processors than this machine's."""
    if platform.machine() != "x86_64":
        pytest.skip("kernels: builds for x86-64 are made on x86-64 only")
    if reason := kernel_builds.why_no_emulator("x86_64"):
        _leave_out(reason)
    return host_build


@pytest.fixture(scope="session")
def loaded(host_build: Build) -> Library:
    return Library(host_build.library)


@pytest.fixture
def library(loaded: Library) -> Iterator[Library]:
    """The C interface in this process, with one thread and the fastest instruction set, whatever a test does."""
    yield loaded
    loaded.use(None)
    loaded.stop_pool()
