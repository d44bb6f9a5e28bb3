"""`magnitude rollback`: put back the model that an import has replaced."""

from __future__ import annotations

from typing import Annotated

import typer

from magnitude.cli.models_folder import ModelsFolderOption, models_folder
from magnitude.cli.options import ConfigOption


def register(app: typer.Typer) -> None:
    app.command("rollback")(rollback)


def rollback(
    name: Annotated[str, typer.Argument(help="Name of the model.", show_default=False)],
    folder: ModelsFolderOption = None,
    config: ConfigOption = None,
) -> None:
    """Put back the model that `import --replace` has replaced; its files are compared with their hashes first.

    A second time undoes it, as long as the service has not found it good. A running service keeps what it has loaded.
    """
    from magnitude.errors import ModelError
    from magnitude.models.catalogue import open_folder
    from magnitude.models.previous import put_back

    place = models_folder(folder, config)
    target = place / name
    if target.parent != place or name.startswith(".") or not name:
        raise ModelError(f"{name!r} is not the name of a model", hint="`magnitude list` shows them", param=name)
    put_back(target)
    model = open_folder(target)
    typer.echo(f"{name}: the earlier model is back ({model.model_hash[:12]}). Restart the service to serve it.")
