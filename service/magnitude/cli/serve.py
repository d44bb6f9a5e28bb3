"""`magnitude serve`: the service, in the foreground."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from magnitude.cli.options import ConfigOption, ListenOption, SetOption, read_configuration, with_listen

if TYPE_CHECKING:
    from pathlib import Path

    from magnitude.config.load import Loaded


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    config: ConfigOption = None,
    overrides: SetOption = None,
    listen: ListenOption = None,
) -> None:
    """Run the service in the foreground until it is told to stop."""
    import os

    from magnitude.intake.turn_away import turning_away
    from magnitude.supervise.inherited import take_inherited

    # Looked up in a copy of the variables: the service itself takes them.
    inherited = take_inherited(dict(os.environ))
    with turning_away([given.fd for given in inherited if given.is_socket]):
        _serve(config, with_listen(overrides, listen))


def _serve(config: Path | None, overrides: list[str]) -> None:
    import logging

    from magnitude import log
    from magnitude.service_loop import run_service

    def read() -> Loaded:
        return read_configuration(config, overrides)

    loaded = read()
    log.setup(loaded.settings.log)
    logger = logging.getLogger("magnitude.config")
    logger.info("configuration read", extra={"fields": {"files": ", ".join(loaded.files) or "none, all defaults"}})
    for notice in loaded.notices:
        logger.warning("%s", notice)
    status = run_service(loaded.settings, read=read)
    if status:
        raise typer.Exit(status)
