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
    trained: Annotated[
        bool, typer.Option("--trained", help="Take the trained table away that `strategy import` installed.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    folder: ModelsFolderOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Begin anew with a model. What was learned stays as a generation, which can be exported and imported again."""
    from magnitude.cli.strategy_source import open_source
    from magnitude.errors import ConfigError

    asked = [*(["names of models"] if models else []), *(["--all"] if everything else [])]
    asked += ["--trained"] if trained else []
    if len(asked) > 1:
        raise ConfigError(f"{asked[0]} and {asked[1]} exclude each other", hint=f"Give {' or '.join(asked)}")
    if not asked:
        raise ConfigError("which models are to begin anew?", hint="Name some, or give --all")
    what = "the trained table and what came from it" if trained else "what was learned of "
    what += "all models" if everything else ", ".join(models or ())
    with open_source(config, url, api_key, folder) as source:
        for model in models or ():
            source.look_for(model)
        if not yes and not typer.confirm(f"Forget {what}?"):
            raise typer.Exit(1)
        changed = source.reset_trained() if trained else source.reset(() if everything else tuple(models or ()))
        typer.echo(f"{changed.text}\nin {source.where}")
