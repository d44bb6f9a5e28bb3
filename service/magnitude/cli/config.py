"""`magnitude config`: show, check, and what one needs to write a configuration."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from magnitude.cli.options import ConfigOption, JsonOption, SetOption, read_configuration

KEY_BYTES = 32  # 256 bits: far beyond guessing, so that a fast hash of it is enough


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="config", help="Show and check the configuration.", no_args_is_help=True)
    group.command("show")(show)
    group.command("check")(check)
    group.command("schema")(schema)
    group.command("hash-key")(hash_key)
    app.add_typer(group)


def show(config: ConfigOption = None, overrides: SetOption = None, as_json: JsonOption = False) -> None:
    """Print the settings in force, defaults included."""
    import msgspec

    from magnitude.config.load import effective

    loaded = read_configuration(config, overrides)
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(loaded.settings), indent=2))
        return
    typer.echo(f"# read from: {', '.join(loaded.files) or 'no file, all defaults'}")
    typer.echo(effective(loaded.settings), nl=False)


def check(config: ConfigOption = None, overrides: SetOption = None) -> None:
    """Check the files: exit status 0, or 78 with what is wrong."""
    loaded = read_configuration(config, overrides)
    for file in loaded.files:
        typer.echo(f"read {file}")
    for notice in loaded.notices:
        typer.echo(f"notice: {notice}")
    typer.echo("The configuration is valid.")


def schema() -> None:
    """Print the JSON schema of the configuration."""
    from magnitude.config.schema import schema_text

    typer.echo(schema_text(), nl=False)


def hash_key(
    name: Annotated[str, typer.Argument(help="Who the key is for.")] = "client",
    from_stdin: Annotated[bool, typer.Option("--stdin", help="Hash the key on standard input, make none.")] = False,
    admin: Annotated[bool, typer.Option("--admin", help="A key for the admin and metrics routes too.")] = False,
) -> None:
    """Make an API key and the lines for `server.api_keys`. The key itself is shown once and kept nowhere."""
    import hashlib
    import secrets
    import sys

    from magnitude.errors import ConfigError

    if from_stdin:
        key = sys.stdin.readline().strip()
        if len(key) < MIN_KEY_CHARS:
            raise ConfigError(
                f"the key has {len(key)} characters, at least {MIN_KEY_CHARS} are needed",
                hint="A short key can be guessed; leave --stdin out and let this command make one",
            )
    else:
        key = f"mag-{secrets.token_urlsafe(KEY_BYTES)}"
        typer.echo(f"key: {key}")
    typer.echo("Add to the configuration:\n")
    typer.echo("server:\n  api_keys:")
    typer.echo(f'    - name: {json.dumps(name)}\n      sha256: "{hashlib.sha256(key.encode()).hexdigest()}"')
    if admin:
        typer.echo("      admin: true")


# Sixteen random characters of 62 are 95 bits; below that an unsalted fast hash is no protection.
MIN_KEY_CHARS = 16
