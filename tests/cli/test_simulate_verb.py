"""`magnitude simulate` as its user sees it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from magnitude.cli.main import app, find_verbs
from magnitude.errors import ConfigError

find_verbs()


def run(*arguments: str) -> str:
    """What it prints. Raises what it raises."""
    result = CliRunner().invoke(app, ["simulate", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_both_governors_are_shown_beside_each_other_and_called_simulated(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    said = run("--board", "pi5-bare", "--hours", "0.1", "--json", str(report))
    assert said.startswith("simulated: Raspberry Pi 5, no cooler")
    assert "magnitude" in said
    data = json.loads(report.read_text("utf-8"))
    assert data["simulated"] is True
    assert [each["summary"]["governor"] for each in data["runs"]] == ["off", "magnitude"]
    assert data["runs"][1]["decisions"]


def test_one_governor_alone_runs_once(tmp_path: Path) -> None:
    said = run("--board", "rock5b", "--load", "steady.yaml", "--hours", "0.05", "--governor", "off")
    assert "off" in said
    assert "magnitude" not in said


def test_a_plot_is_drawn_in_the_kind_that_its_name_says(tmp_path: Path) -> None:
    for name, begins in (("out.png", b"\x89PNG"), ("out.svg", b"<?xml")):
        run("--board", "pi5-bare", "--hours", "0.05", "--plot", str(tmp_path / name))
        assert (tmp_path / name).read_bytes().startswith(begins)


def test_a_plot_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # What Python does where a module is not installed.
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError) as error:
        run("--board", "pi5-bare", "--hours", "0.01", "--plot", str(tmp_path / "out.png"))
    assert "magnitude[report]" in error.value.hint


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--board", "pi6"), "pi6"),
        (("--board", "pi5-bare", "--load", "nights"), "nights"),
        (("--board", "pi5-bare", "--hours", "0"), "--hours"),
        (("--board", "pi5-bare", "--hours", "100000"), "--hours"),
        (("--board", "pi5-bare", "--ambient", "300"), "--ambient"),
        (("--board", "pi5-bare", "--hours", "0.01", "--json", "/nowhere/at/all.json"), "/nowhere/at"),
        # Refused before anything is computed: this would take ten minutes.
        (("--board", "pi5-bare", "--hours", "700", "--plot", "out.unheard"), "out.unheard"),
    ],
)
def test_wrong_input_is_answered_with_a_hint(
    arguments: tuple[str, ...], named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        run(*arguments)
    assert named in error.value.message
    assert error.value.hint
