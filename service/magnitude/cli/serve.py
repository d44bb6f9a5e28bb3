"""`magnitude serve`: the service, in the foreground."""

from __future__ import annotations

from typing import Annotated

import typer

from magnitude.cli.options import ConfigOption, SetOption, read_configuration


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    config: ConfigOption = None,
    overrides: SetOption = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="The same as --set server.listen=HOST:PORT.")
    ] = None,
) -> None:
    """Run the service in the foreground until it is told to stop."""
    import logging

    from magnitude import log
    from magnitude.service import run_service

    extra = [f'server.listen="{listen}"'] if listen is not None else []
    loaded = read_configuration(config, [*(overrides or []), *extra])
    log.setup(loaded.settings.log)
    logger = logging.getLogger("magnitude.config")
    logger.info("configuration read", extra={"fields": {"files": ", ".join(loaded.files) or "none, all defaults"}})
    for notice in loaded.notices:
        logger.warning("%s", notice)
    run_service(loaded.settings)
