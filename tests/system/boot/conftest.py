"""Roots and booted systems. What a machine cannot run is skipped, and the reason stands in pytest's summary."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import guest
import guest_session
import nspawn
import pytest
import rootfs
from booted_board import Board
from guest import Guest
from guest_session import Guests

# Raspberry Pi OS has had both: systemd 252 and 257.
SUITES = ("bookworm", "trixie")
OLDEST, NEWEST = SUITES


@pytest.fixture(scope="session")
def can_boot() -> None:
    """Skip where nothing can be booted; fail there when MAGNITUDE_SYSTEM_TESTS says that it must."""
    if reason := nspawn.why_not():
        _leave_out(f"system tests under systemd: {reason}")


@pytest.fixture(scope="session", params=SUITES)
def root(can_boot: None, request: pytest.FixtureRequest) -> Path:
    """The root file system of each suite in turn."""
    return rootfs.build_root(request.param)


@pytest.fixture(scope="session")
def oldest_root(can_boot: None) -> Path:
    return rootfs.build_root(OLDEST)


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


@pytest.fixture(scope="session")
def guests(tmp_path_factory: pytest.TempPathFactory) -> Guests:
    """Skips where no guest can run, with the reason; fails there when MAGNITUDE_SYSTEM_TESTS says that it must."""
    if reason := guest_session.why_not():
        _leave_out(f"system tests in a guest: {reason}")
    return Guests(guest_session.build_image(), tmp_path_factory.mktemp("guests"))


@pytest.fixture
def serving(guests: Guests) -> Iterator[Guest]:
    """A guest whose service answers."""
    with guests.restored() as guest:
        yield guest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failed test shows the end of the journal of the systems and guests that it used."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed and call.when in ("setup", "call"):
        for board in nspawn.running():
            report.sections.append((f"journal of {board.name}", board.journal("--lines=150")))
        for machine in guest.running():
            with contextlib.suppress(guest.GuestError):
                report.sections.append(("journal of the guest", machine.journal("--lines=150")))


def _leave_out(message: str) -> None:
    if os.environ.get("MAGNITUDE_SYSTEM_TESTS") == "required":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)
