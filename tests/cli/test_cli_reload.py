from __future__ import annotations

import json

from fake_service import FakeService, at
from typer.testing import CliRunner

from magnitude.cli.main import app
from magnitude.errors import ConfigError


def test_reload_says_which_keys_count_now_and_which_do_not(cli: CliRunner, service: FakeService) -> None:
    service.reloaded = {**service.reloaded, "applied": ["log.level"], "needs_restart": ["engine.threads"]}
    result = cli.invoke(app, ["reload", *at(service)])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == ["applied: log.level", "needs restart: engine.threads"]
    as_json = cli.invoke(app, ["reload", "--json", *at(service)])
    assert json.loads(as_json.stdout) == service.reloaded


def test_reload_without_a_change_is_said_in_words(cli: CliRunner, service: FakeService) -> None:
    assert cli.invoke(app, ["reload", *at(service)]).stdout == "Nothing changed.\n"


def test_a_broken_configuration_is_an_error_of_the_configuration(cli: CliRunner, service: FakeService) -> None:
    said = {"message": "magnitude.yaml, line 3: not valid YAML", "code": "config_invalid", "hint": "Check colons"}
    service.error = (409, {"error": said})
    result = cli.invoke(app, ["reload", *at(service)])
    assert isinstance(result.exception, ConfigError)  # which the command line ends with status 78
    assert (result.exception.message, result.exception.hint) == (said["message"], said["hint"])


def test_any_other_refusal_stays_what_it_is(cli: CliRunner, service: FakeService) -> None:
    service.error = (401, {"error": {"message": "This route needs an admin key", "code": "admin_key_missing"}})
    result = cli.invoke(app, ["reload", *at(service)])
    assert not isinstance(result.exception, ConfigError)
    assert "admin key" in str(result.exception)
