"""`magnitude serve`: the service, in the foreground."""

from __future__ import annotations

import typer

from magnitude.cli.options import ConfigOption, ListenOption, SetOption, read_configuration, with_listen


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
    from magnitude.service import run_service

    loaded = read_configuration(config, with_listen(overrides, listen))
    log.setup(loaded.settings.log)
    logger = logging.getLogger("magnitude.config")
    logger.info("configuration read", extra={"fields": {"files": ", ".join(loaded.files) or "none, all defaults"}})
    for notice in loaded.notices:
        logger.warning("%s", notice)
    run_service(loaded.settings)
