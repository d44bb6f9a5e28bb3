from __future__ import annotations

import json

from fake_service import FakeService, at
from typer.testing import CliRunner

from magnitude.cli.main import app

IN_MEMORY = {
    "model": "tiny-chat",
    "owner": "kitchen",
    "tokens": 1200,
    "size_bytes": 55_000_000,
    "where": "memory",
    "idle_s": 61.0,
}
ON_DISK = {**IN_MEMORY, "model": "other & chat", "owner": "", "where": "disk", "idle_s": 90_000.0}


def test_list_says_what_is_kept_where_and_since_when(cli: CliRunner, service: FakeService) -> None:
    service.kept = [IN_MEMORY, ON_DISK]
    result = cli.invoke(app, ["kv", "list", "--api-key", "secret", *at(service)])
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["tiny-chat", "kitchen", "memory", "1200", "55.0", "MB", "1", "min", "1", "s"] in rows
    assert ["other", "&", "chat", "-", "disk", "1200", "55.0", "MB", "1", "d", "1", "h"] in rows
    assert service.keys == ["Bearer secret"]
    as_json = cli.invoke(app, ["kv", "list", "--json", *at(service)])
    assert json.loads(as_json.stdout) == [IN_MEMORY, ON_DISK]


def test_an_empty_list_is_said_in_words(cli: CliRunner, service: FakeService) -> None:
    assert cli.invoke(app, ["kv", "list", *at(service)]).stdout == "No conversation is kept.\n"


def test_delete_asks_first_and_does_nothing_without_a_yes(cli: CliRunner, service: FakeService) -> None:
    service.kept = [IN_MEMORY]
    refused = cli.invoke(app, ["kv", "delete", *at(service)], input="n\n")
    assert refused.exit_code == 1
    assert service.kept == [IN_MEMORY]
    agreed = cli.invoke(app, ["kv", "delete", *at(service)], input="y\n")
    assert agreed.exit_code == 0
    assert agreed.stdout.endswith("deleted 1 conversation\n")
    assert service.kept == []


def test_delete_can_name_a_model(cli: CliRunner, service: FakeService) -> None:
    service.kept = [IN_MEMORY, ON_DISK]
    result = cli.invoke(app, ["kv", "delete", "--yes", "--model", "other & chat", *at(service)])
    assert result.stdout == "deleted 1 conversation of other & chat\n"
    assert service.kept == [IN_MEMORY]
