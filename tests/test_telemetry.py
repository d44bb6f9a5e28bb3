from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Suppress it as well; here nothing but our own doing may keep it quiet.
SILENCERS = ("ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS", "CI", "GITHUB_ACTIONS")

MODULES = [
    "magnitude.engine.__main__",
    "magnitude.models.importing.onnx_examine",
    "magnitude.models.importing.graph_runner",
]


def run(home: Path, code: str) -> list[Path]:
    """Run `code` as somebody whose home is the empty folder `home`; what lies in it afterwards."""
    home.mkdir()
    environ = {name: value for name, value in os.environ.items() if name not in SILENCERS}
    environ |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True, timeout=60)
    return sorted(home.rglob("*"))


@pytest.mark.parametrize("module", MODULES)
def test_onnx_runtime_leaves_neither_device_id_nor_events(module: str, tmp_path: Path) -> None:
    code = f"import {module}, onnxruntime; onnxruntime.get_available_providers()"
    assert run(tmp_path / "home", code) == []
