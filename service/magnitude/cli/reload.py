"""`magnitude reload`: let the running service read its configuration again."""

from __future__ import annotations

import json

import typer

from magnitude.cli.options import ConfigOption, JsonOption, KeyOption, UrlOption, reach_service

PATH = "/v1/magnitude/reload"


def register(app: typer.Typer) -> None:
    app.command("reload")(reload)


def reload(
    config: ConfigOption = None, url: UrlOption = None, api_key: KeyOption = None, as_json: JsonOption = False
) -> None:
    """Read the configuration again and say which keys count now and which need a restart.

    With a configuration that is broken nothing changes, and the exit status is 78.
    """
    from magnitude.cli.client import ServiceRefused
    from magnitude.errors import ConfigError

    try:
        with reach_service(config, url, api_key) as client:
            outcome = client.post(PATH, {})
    except ServiceRefused as refused:
        if refused.code != ConfigError.code:
            raise
        raise ConfigError(refused.message, hint=refused.hint) from refused
    if as_json:
        typer.echo(json.dumps(outcome, indent=2))
        return
    for label, keys in (("applied", outcome["applied"]), ("needs restart", outcome["needs_restart"])):
        for key in keys:
            typer.echo(f"{label}: {key}")
    if not outcome["applied"] and not outcome["needs_restart"]:
        typer.echo("Nothing changed.")
