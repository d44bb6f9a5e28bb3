"""`magnitude strategy import`: let a dump or a trained table count."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from magnitude.cli.models_folder import ModelsFolderOption
from magnitude.cli.options import ConfigOption, KeyOption, UrlOption


def register_strategy(group: typer.Typer) -> None:
    group.command("import")(import_)


def import_(
    *,
    file: Annotated[
        Path, typer.Argument(help="What `strategy export` or `strategy train` wrote.", show_default=False)
    ],
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="NAME", help="For which model (the one whose weights it names).")
    ] = "",
    as_prior: Annotated[
        bool,
        typer.Option("--as-prior", help="Take its choices as a hint, though it was learned with something else."),
    ] = False,
    folder: ModelsFolderOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Take a dump over in place of what is known, or install a trained table beside it.

    A dump must have been learned with these weights, this ONNX Runtime, this CPU and this board. What was known
    stays as a generation (`magnitude strategy show`). A running service goes by it at once.
    """
    from magnitude.cli.strategy_source import open_source, read_bytes

    data = read_bytes(file)
    with open_source(config, url, api_key, folder) as source:
        changed = source.import_file(data, str(file), model=model, as_prior=as_prior)
        typer.echo(f"{changed.text}\nin {source.where}")
