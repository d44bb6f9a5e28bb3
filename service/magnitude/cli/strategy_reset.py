"""`magnitude strategy reset`: forget what was learned."""

from __future__ import annotations

from typing import Annotated

import typer

from magnitude.cli.models_folder import ModelsFolderOption
from magnitude.cli.options import ConfigOption, KeyOption, UrlOption


def register_strategy(group: typer.Typer) -> None:
    group.command("reset")(reset)


def reset(
    *,
    models: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help="Names of models.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All models.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    folder: ModelsFolderOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Begin anew with a model. What was learned stays as a generation, which can be exported and imported again."""
    from magnitude.cli.strategy_source import open_source
    from magnitude.errors import ConfigError

    if models and everything:
        raise ConfigError("names of models and --all exclude each other", hint="Give the names, or --all")
    if not models and not everything:
        raise ConfigError("which models are to begin anew?", hint="Name some, or give --all")
    of_models = "all models" if everything else ", ".join(models or ())
    with open_source(config, url, api_key, folder) as source:
        for model in models or ():
            source.look_for(model)
        if not yes and not typer.confirm(f"Forget what was learned of {of_models}?"):
            raise typer.Exit(1)
        changed = source.reset(() if everything else tuple(models or ()))
        typer.echo(f"{changed.text}\nin {source.where}")
