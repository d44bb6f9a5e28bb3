"""`magnitude strategy export`: a dump as a file, for another board of the kind or for keeping."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from magnitude.cli.models_folder import ModelsFolderOption
from magnitude.cli.options import ConfigOption, KeyOption, UrlOption


def register_strategy(group: typer.Typer) -> None:
    group.command("export")(export)


def export(
    *,
    model: Annotated[str, typer.Argument(help="MODEL, or MODEL@3 for a generation.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.", show_default=False)
    ],
    folder: ModelsFolderOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Write what was learned of a model to a file that `magnitude strategy import` takes.

    It holds choices, costs and what they are bound to; nothing of any request.
    """
    from magnitude.cli.strategy_source import learned_at, open_source
    from magnitude.errors import ConfigError, MagnitudeError
    from magnitude.persist import write_atomic
    from magnitude.policy.dump_exchange import exported

    with open_source(config, url, api_key, folder) as source:
        learned = learned_at(source, model)
        generation = next((one.generation for one in source.shown() if one.learned == learned), 0)
    if not learned.entries:
        raise MagnitudeError(f"nothing is learned of {model} yet", hint="Let it work for a while, or tune it")
    try:
        write_atomic(output, exported(learned, generation))
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}", hint="Name another file") from error
    count = len(learned.entries)
    typer.echo(f"written: {output} ({count} situation{'' if count == 1 else 's'})")
