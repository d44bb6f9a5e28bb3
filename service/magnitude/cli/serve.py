"""`magnitude serve`: the service, in the foreground."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from magnitude.cli.options import ConfigOption, ListenOption, SetOption, read_configuration, with_listen

if TYPE_CHECKING:
    from pathlib import Path

    from magnitude.config.load import Loaded
    from magnitude.simulate.live import SimulateOptions

# What the physical model was made for; a board outside of it says nothing about one.
AMBIENT_C = (-20.0, 70.0)
CHIP_C = (-20.0, 110.0)
# Beyond this a look at the simulated sensors, ten a second, misses how warm the chip got between two.
FASTEST = 100.0


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    config: ConfigOption = None,
    overrides: SetOption = None,
    listen: ListenOption = None,
    *,
    simulate: Annotated[
        str | None,
        typer.Option(
            metavar="BOARD",
            help="Take heat, clocks and speed from a simulated board (pi5-bare, pi5-cooler, rock5b, or a profile's "
            "file), not from this machine: for trying, not for measuring.",
        ),
    ] = None,
    ambient: Annotated[
        float,
        typer.Option(metavar="C", min=AMBIENT_C[0], max=AMBIENT_C[1], help="Air around the simulated board, °C."),
    ] = 25.0,
    simulate_start: Annotated[
        float | None,
        typer.Option(
            metavar="C",
            min=CHIP_C[0],
            max=CHIP_C[1],
            help="Temperature of the simulated chip at the start, °C; unless given, an idle board's.",
            show_default=False,
        ),
    ] = None,
    simulate_speed: Annotated[
        float,
        typer.Option(
            metavar="FACTOR", min=0.1, max=FASTEST, help="How much faster than real time heat passes on that board."
        ),
    ] = 1.0,
) -> None:
    """Run the service in the foreground until it is told to stop."""
    import os

    from magnitude.intake.turn_away import turning_away
    from magnitude.supervise.inherited import take_inherited

    board: SimulateOptions | None = None
    if simulate is not None:
        from magnitude.simulate.live import SimulateOptions

        board = SimulateOptions(board=simulate, ambient_c=ambient, start_c=simulate_start, speed=simulate_speed)
    # Looked up in a copy of the variables: the service itself takes them.
    inherited = take_inherited(dict(os.environ))
    with turning_away([given.fd for given in inherited if given.is_socket]):
        _serve(config, with_listen(overrides, listen), board)


def _serve(config: Path | None, overrides: list[str], simulate: SimulateOptions | None) -> None:
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
    status = run_service(loaded.settings, read=read, simulate=simulate)
    if status:
        raise typer.Exit(status)
