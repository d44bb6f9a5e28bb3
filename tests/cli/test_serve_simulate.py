from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from magnitude.cli.main import app


def test_a_board_that_there_is_no_profile_of_is_refused_with_those_that_there_are(
    cli: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGNITUDE_HOME", str(tmp_path))
    result = cli.invoke(app, ["serve", "--simulate", "pi9"])
    assert result.exit_code != 0
    said = str(result.exception)
    assert "pi9" in said
    assert "pi5-bare" in said


@pytest.mark.parametrize("options", [["--ambient", "900"], ["--simulate-speed", "0"], ["--simulate-start", "500"]])
def test_what_no_board_is_like_is_refused(cli: CliRunner, options: list[str]) -> None:
    assert cli.invoke(app, ["serve", "--simulate", "pi5-bare", *options]).exit_code == 2
