"""`magnitude recycle`: replace the engine of the running service."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from magnitude.cli.options import ConfigOption, JsonOption, KeyOption, UrlOption, reach_service


def register(app: typer.Typer) -> None:
    app.command("recycle")(recycle)


def recycle(
    reason: Annotated[
        str, typer.Option("--reason", "-r", metavar="TEXT", help="Why; it goes to the service's log.")
    ] = "",
    config: ConfigOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace the engine process by a fresh one. Answers under way stall for a moment and go on; none is lost."""
    with reach_service(config, url, api_key) as client:
        answer = client.post("/v1/magnitude/recycle", {"reason": reason} if reason else {})
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    if answer["engine_pid"] is None:
        typer.echo(f"the next engine is not there after {answer['took_s']:.1f} s; 'magnitude ps' shows how it comes")
        raise typer.Exit(1)
    held = answer["open_requests"]
    went_on = f"; {held} open request{'' if held == 1 else 's'} went on with it" if held else ""
    typer.echo(f"engine {answer['engine_pid']} serves after {answer['took_s']:.2f} s{went_on}")
