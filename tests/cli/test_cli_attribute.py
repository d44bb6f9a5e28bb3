"""`magnitude attribute` as a verb: work from a file, what it needs, and its report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_service import STATE, FakeService, at
from typer.testing import CliRunner

from fake_strategies import FakeStrategies
from magnitude.cli.attribution.work import read_work
from magnitude.cli.main import app
from magnitude.errors import ConfigError, MagnitudeError


@pytest.fixture
def strategies(service: FakeService, tmp_path: Path) -> FakeStrategies:
    service.strategies = FakeStrategies(tmp_path, "tiny-chat")
    service.more_state = {"run_times": {"prefill_s": 1.0, "decode_s": 2.0}, "board": {"profile": "pi5-bare"}}
    return service.strategies


@pytest.mark.slow
def test_a_round_is_replayed_and_reported_with_where_its_figures_are_from(
    cli: CliRunner, service: FakeService, strategies: FakeStrategies, tmp_path: Path
) -> None:
    work, picture = tmp_path / "work.jsonl", tmp_path / "found.svg"
    work.write_text('{"messages": [{"role": "user", "content": "hi"}]}\n\n{"messages": [], "together": true}\n')
    options = ["--minutes", "0.1", "--learn", "0", "--work", str(work), "--plot", str(picture), *at(service)]
    result = cli.invoke(app, ["attribute", *options])
    assert result.exit_code == 0, (result.output, result.exception)
    text = result.stdout
    assert "tiny-chat: 1 round of 4 blocks with 2 requests each" in text
    for name in ("first token", "between tokens", "whole request", "whole work", "energy of the work", "peak memory"):
        assert name in text
    assert "energy: " in text
    assert "failed: 0 with the loop off, 0 with it on" in text
    assert "too few rounds" in text
    assert strategies.held[-1] == 0
    assert picture.read_text().startswith("<?xml")
    # Warm-up and four blocks, in each the request that wakes the sessions and the two of the work.
    assert len(service.requests) == 6 * 3
    assert {request["model"] for request in service.requests} == {"tiny-chat"}


def test_a_model_without_a_loop_and_a_loop_that_is_off_are_no_comparison(
    cli: CliRunner, service: FakeService, strategies: FakeStrategies
) -> None:
    result = cli.invoke(app, ["attribute", "--model", "zebra", *at(service)])
    assert isinstance(result.exception, MagnitudeError)
    assert "tiny-chat" in result.exception.hint
    strategies.known.clear()
    result = cli.invoke(app, ["attribute", *at(service)])
    assert isinstance(result.exception, MagnitudeError)
    assert "self_optimize" in result.exception.hint
    assert strategies.held == []
    assert STATE["models"]


def test_work_from_a_file_is_taken_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "work.jsonl"
    lines = [
        {"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 5},
        {"input": ["a", "b"], "model": "other", "together": True},
        {"messages": [], "model": "third", "temperature": 0.7},
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    first, second = read_work(file, "tiny-chat")
    assert [ask.route for ask in first] == ["chat", "embeddings"]
    assert first[0].body == {
        "model": "tiny-chat",
        "temperature": 0,
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "hi"}],
    }
    assert first[1].body == {"input": ["a", "b"], "model": "other"}
    assert second[0].body["temperature"] == 0.7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no request"),
        ("{}\n", "line 1"),
        ('{"messages": []}\nx\n', "line 2"),
        ('{"messages": [], "input": []}', "line 1"),
        ("[1]", "line 1"),
        ('{"input": ["a"]}\n' * 1001, "more than 1000"),
    ],
)
def test_work_that_is_none_is_refused_by_its_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "work.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_work(file, "tiny-chat")


@pytest.mark.parametrize("learn", ["1", "5"])
def test_learning_that_leaves_nothing_to_measure_is_refused_before_anything_is_asked(
    cli: CliRunner, service: FakeService, strategies: FakeStrategies, learn: str
) -> None:
    result = cli.invoke(app, ["attribute", "--minutes", "1", "--learn", learn, *at(service)])
    assert isinstance(result.exception, ConfigError)
    assert "--minutes" in result.exception.hint
    assert strategies.held == []


def test_a_plot_that_cannot_be_drawn_is_refused_before_anything_is_asked(
    cli: CliRunner, service: FakeService, strategies: FakeStrategies, tmp_path: Path
) -> None:
    result = cli.invoke(app, ["attribute", "--plot", str(tmp_path / "x.doc"), *at(service)])
    assert isinstance(result.exception, ConfigError)
    assert strategies.held == []
