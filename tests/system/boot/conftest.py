"""Roots and booted systems. What a machine cannot run is skipped, and the reason stands in pytest's summary."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nspawn
import pytest
import rootfs
from booted_board import Board

# Raspberry Pi OS has had both: systemd 252 and 257.
SUITES = ("bookworm", "trixie")
OLDEST, NEWEST = SUITES


@pytest.fixture(scope="session")
def can_boot() -> None:
    """Skip where nothing can be booted; fail there when MAGNITUDE_SYSTEM_TESTS says that it must."""
    if reason := nspawn.why_not():
        message = f"system tests under systemd: {reason}"
        if os.environ.get("MAGNITUDE_SYSTEM_TESTS") == "required":
            pytest.fail(message, pytrace=False)
        pytest.skip(message)


@pytest.fixture(scope="session", params=SUITES)
def root(can_boot: None, request: pytest.FixtureRequest) -> Path:
    """The root file system of each suite in turn."""
    return rootfs.build_root(request.param)


@pytest.fixture(scope="session")
def oldest_root(can_boot: None) -> Path:
    return rootfs.build_root(OLDEST)


@pytest.fixture(scope="session")
def newest_root(can_boot: None) -> Path:
    return rootfs.build_root(NEWEST)


@pytest.fixture(scope="session")
def chat_model(magnitude_home: Path) -> Path:
    return magnitude_home / "models" / "smollm2-135m-instruct"


@pytest.fixture
def boot() -> Iterator[Callable[..., Board]]:
    """Boots a system for one test; its arguments are those of `Board`."""
    booted: list[Board] = []

    def start(*given: Any, **named: Any) -> Board:
        booted.append(Board(*given, **named))
        return booted[-1].__enter__()

    yield start
    for board in booted:
        board.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failed test shows the end of the journal of the systems that it used."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed and call.when in ("setup", "call"):
        for board in nspawn.running():
            report.sections.append((f"journal of {board.name}", board.journal("--lines=150")))
