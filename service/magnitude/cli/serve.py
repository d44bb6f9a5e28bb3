"""`magnitude serve`: the service, in the foreground."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from magnitude.cli.options import ConfigOption, ListenOption, SetOption, read_configuration, with_listen

if TYPE_CHECKING:
    from magnitude.config.load import Loaded


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    config: ConfigOption = None,
    overrides: SetOption = None,
    listen: ListenOption = None,
) -> None:
    """Run the service in the foreground until it is told to stop."""
    import logging

    from magnitude import log
    from magnitude.service_loop import run_service

    def read() -> Loaded:
        return read_configuration(config, with_listen(overrides, listen))

    loaded = read()
    log.setup(loaded.settings.log)
    logger = logging.getLogger("magnitude.config")
    logger.info("configuration read", extra={"fields": {"files": ", ".join(loaded.files) or "none, all defaults"}})
    for notice in loaded.notices:
        logger.warning("%s", notice)
    status = run_service(loaded.settings, read=read)
    if status:
        raise typer.Exit(status)
