"""`magnitude kv`: the conversations that the service keeps, in memory and on disk."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from magnitude.cli.options import ConfigOption, JsonOption, KeyOption, UrlOption, reach_service

PATH = "/v1/magnitude/kv"
WIDE = 240


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="kv", help="Show and delete the conversations that are kept.", no_args_is_help=True)
    group.command("list")(list_kept)
    group.command("delete")(delete)
    app.add_typer(group)


def list_kept(
    config: ConfigOption = None, url: UrlOption = None, api_key: KeyOption = None, as_json: JsonOption = False
) -> None:
    """List them: model, owner, tokens, size and age, never their text."""
    with reach_service(config, url, api_key) as client:
        kept = client.get(PATH)["data"]
    if as_json:
        typer.echo(json.dumps(kept, indent=2))
        return
    if not kept:
        typer.echo("No conversation is kept.")
        return
    from rich.console import Console
    from rich.table import Table

    from magnitude.cli.numbers import age, size

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("MODEL", "OWNER", "WHERE", "TOKENS", "SIZE", "IDLE"):
        table.add_column(heading, justify="left" if heading in ("MODEL", "OWNER", "WHERE") else "right")
    for one in sorted(kept, key=lambda one: (one["model"], one["owner"], one["where"], one["idle_s"])):
        table.add_row(
            one["model"],
            one["owner"] or "-",
            one["where"],
            str(one["tokens"]),
            size(one["size_bytes"]),
            age(one["idle_s"]),
        )
    # A pipe has no width: lines for `grep` must not be folded.
    Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDE).print(table)


def delete(
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="NAME", help="Only those of this model.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Delete them, in memory and on disk: with an API key its own, over the unix socket or with an admin key all.

    What is deleted is computed again when its conversation goes on. Answers that are under way are not disturbed.
    """
    of_model = f" of {model}" if model else ""
    if not yes and not typer.confirm(f"Delete all conversations{of_model} that are kept?"):
        raise typer.Exit(1)
    with reach_service(config, url, api_key) as client:
        answer: Any = client.delete(PATH, {"model": model} if model else {})
    deleted = answer["deleted"]
    typer.echo(f"deleted {deleted} conversation{'' if deleted == 1 else 's'}{of_model}")
