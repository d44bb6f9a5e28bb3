"""Fixtures for tests in guests; `conftest.py` takes them in."""

from __future__ import annotations

import os
from collections.abc import Iterator

import guest_session
import pytest
from guest import Guest
from guest_session import Guests


@pytest.fixture(scope="session")
def guests(tmp_path_factory: pytest.TempPathFactory) -> Guests:
    """Skips where no guest can run, with the reason; fails there when MAGNITUDE_SYSTEM_TESTS says that it must."""
    if reason := guest_session.why_not():
        message = f"system tests in a guest: {reason}"
        if os.environ.get("MAGNITUDE_SYSTEM_TESTS") == "required":
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    return Guests(guest_session.build_image(), tmp_path_factory.mktemp("guests"))


@pytest.fixture
def serving(guests: Guests) -> Iterator[Guest]:
    """A guest whose service answers."""
    with guests.restored() as guest:
        yield guest


__all__: tuple[str, ...] = ("guests", "serving")
