"""Options that several verbs share, and what they lead to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from magnitude.cli.client import ServiceClient
    from magnitude.config.load import Loaded

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="Configuration file.", show_default=False)
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, for example engine.threads=2."),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", envvar="MAGNITUDE_URL", metavar="URL", help="Address of the service: http://host:port or unix:PATH."
    ),
]
KeyOption = Annotated[
    str | None, typer.Option("--api-key", envvar="MAGNITUDE_API_KEY", metavar="KEY", help="API key.")
]
ListenOption = Annotated[
    str | None, typer.Option("--listen", metavar="HOST:PORT", help="The same as --set server.listen=HOST:PORT.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ModelOption = Annotated[str, typer.Option("--model", "-m", metavar="NAME", help="Model (the default chat model).")]


def read_configuration(config: Path | None, overrides: list[str] | None = None) -> Loaded:
    """The configuration of this process. Raises `ConfigError`."""
    from magnitude.config.load import load

    return load(config, overrides=overrides or ())


def with_listen(overrides: list[str] | None, listen: str | None) -> list[str]:
    """The overrides of `--set` and `--listen` together."""
    return [*(overrides or []), *([f'server.listen="{listen}"'] if listen is not None else [])]


def reach_service(
    config: Path | None, url: str | None, api_key: str | None, overrides: list[str] | None = None
) -> ServiceClient:
    """A client of the running service: at `url`, or where the configuration says. Raises `ServiceUnreachable`."""
    from magnitude.cli.client import candidates, connect
    from magnitude.paths import find_paths

    return connect(candidates(read_configuration(config, overrides).settings, find_paths(), url), api_key)
