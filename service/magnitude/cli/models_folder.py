"""Which folder the verbs about models mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelsFolderOption = Annotated[
    Path | None,
    typer.Option(
        "--models-folder",
        envvar="MAGNITUDE_MODELS",
        metavar="FOLDER",
        help="Where model folders lie (else models.folder of the configuration, else the usual place).",
        show_default=False,
    ),
]


def models_folder(folder: Path | None, config: Path | None) -> Path:
    """The folder named on the command line, else by the configuration, else the installation's own."""
    if folder is not None:
        return folder.absolute()
    from magnitude.cli.options import read_configuration
    from magnitude.paths import find_paths

    configured = read_configuration(config).settings.models.folder
    return Path(configured) if configured else find_paths().models
