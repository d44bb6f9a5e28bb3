from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from magnitude.cli.main import find_verbs

sys.path.insert(0, str(Path(__file__).parent))

from fake_service import FakeService, running


@pytest.fixture
def service() -> Iterator[FakeService]:
    # Not in `tmp_path`: a socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory() as short, running(FakeService(), Path(short)) as fake:
        yield fake


@pytest.fixture
def cli() -> CliRunner:
    find_verbs()
    return CliRunner()


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for every test, so that none meets the service or the configuration of this machine."""
    home = tmp_path / "home"
    for name in ("MAGNITUDE_CONFIG", "MAGNITUDE_URL", "MAGNITUDE_API_KEY", "MAGNITUDE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MAGNITUDE_HOME", str(home))
    return home
