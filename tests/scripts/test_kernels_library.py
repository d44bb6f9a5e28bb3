"""The library of kernels for packages and images: compiled for either architecture, or said why not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
# ELF's number of a machine (elf.h, EM_...), at byte 18.
MACHINES = {"x86_64": 62, "aarch64": 183}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(CHECKOUT))
    yield


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("machine", MACHINES)
def test_it_is_compiled_for_either_machine(tmp_path: Path, machine: str) -> None:
    from image.debian.kernels_library import PLACE, build_library, why_no_library

    if reason := why_no_library(machine):
        if os.environ.get("MAGNITUDE_SYSTEM_TESTS") == "required":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    target = tmp_path / "site" / PLACE
    build_library(machine, target, tmp_path / "headers", run)
    head = target.read_bytes()[:20]
    assert head[:4] == b"\x7fELF"
    assert int.from_bytes(head[18:20], "little") == MACHINES[machine]
    # The service would refuse one without operators.
    assert b"RegisterCustomOps" in target.read_bytes()


def test_what_is_missing_is_named_with_its_package() -> None:
    from image.debian.kernels_library import why_no_library

    reason = why_no_library("aarch64", lambda name: None if name == "aarch64-linux-gnu-g++" else name)
    assert reason.endswith("aarch64-linux-gnu-g++ not found: sudo apt install g++-aarch64-linux-gnu")
    reason = why_no_library("x86_64", lambda name: None)
    assert reason.endswith("sudo apt install cmake g++-x86-64-linux-gnu")


def test_a_package_is_not_built_slower_without_a_word(tmp_path: Path) -> None:
    """On a machine without compilers: an error with the way out."""
    tools = tmp_path / "bin"
    tools.mkdir()
    done = subprocess.run(
        [sys.executable, CHECKOUT / "image/debian/build_deb.py", "--suite", "trixie", "--out", tmp_path, "arm64"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tools)},
    )
    assert done.returncode == 1
    assert "g++-aarch64-linux-gnu (or build a slower package by --without-kernels)" in done.stderr
