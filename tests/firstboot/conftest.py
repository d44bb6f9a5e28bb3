from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from parcels import Card


@pytest.fixture
def card(tmp_path: Path) -> Card:
    return Card(tmp_path / "device")
