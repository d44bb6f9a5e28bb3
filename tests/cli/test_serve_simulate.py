from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from magnitude.cli.main import app


def test_a_board_that_there_is_no_profile_of_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "magnitude.cli.main", "serve", "--simulate", "pi9"],
        env={**os.environ, "MAGNITUDE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 78
    assert "pi9" in done.stderr
    assert "pi5-bare" in done.stderr


@pytest.mark.parametrize("options", [["--ambient", "900"], ["--simulate-speed", "0"], ["--simulate-start", "500"]])
def test_what_no_board_is_like_is_refused(cli: CliRunner, options: list[str]) -> None:
    assert cli.invoke(app, ["serve", "--simulate", "pi5-bare", *options]).exit_code == 2
