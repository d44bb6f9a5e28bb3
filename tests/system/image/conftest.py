"""Images that are built and booted. What a machine cannot run is skipped, and pytest's summary says why."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "boot"))  # machines, and the record of writes
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "models"))  # tiny sources of models

from tested_image import ImageUnderTest, build_tested

from image.guest import build, qemu
from image.guest.build import Parts, cache_folder, kept_parts


@pytest.fixture(scope="session")
def can_build() -> Callable[[str], None]:
    """Skips, or fails where MAGNITUDE_SYSTEM_TESTS says that it must run, what this machine cannot build or boot."""

    def check(architecture: str) -> None:
        reason = build.why_not(architecture)
        program, firmware = qemu.PROGRAMS[architecture], qemu.FIRMWARE[architecture]
        missing = [name for name in (program, firmware) if not (shutil.which(name) or Path(name).exists())]
        if not reason and missing:
            reason = f"{', '.join(missing)} not found: run scripts/system-test-setup --on-demand"
        if not reason:
            return
        message = f"images for {architecture}: {reason}"
        if os.environ.get("MAGNITUDE_SYSTEM_TESTS") == "required":
            pytest.fail(message, pytrace=False)
        pytest.skip(message)

    return check


@pytest.fixture(scope="session")
def parts(can_build: Callable[[str], None]) -> Parts:
    """Tools, base and kernel for amd64."""
    can_build("amd64")
    return kept_parts(cache_folder(), "amd64")


@pytest.fixture(scope="session")
def tested(can_build: Callable[[str], None]) -> ImageUnderTest:
    """An amd64 image with two updates."""
    can_build("amd64")
    return build_tested("amd64")
