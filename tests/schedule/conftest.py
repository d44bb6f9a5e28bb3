from __future__ import annotations

from collections.abc import Iterator

import pytest
from sample_plans import close_plans


@pytest.fixture(autouse=True)
def _plans_are_closed() -> Iterator[None]:
    """Give back the KV memory of the plans that a test has made."""
    yield
    close_plans()
