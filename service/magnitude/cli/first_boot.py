"""`magnitude first-boot`: what units of an image run. Not for machines that are not ours as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ISSUE = Path("/run/magnitude-device/issue")


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="Set a device up from its boot partition, and say on its console how it is."
    )
    group.command("prepare")(prepare)
    group.command("grow")(grow)
    group.command("announce")(announce)
    app.add_typer(group, name="first-boot")


def prepare() -> None:
    """Take over what lies on the boot partition, and make the device's own keys and ids."""
    from magnitude.config.log import LogSettings
    from magnitude.firstboot.device import Device
    from magnitude.firstboot.device import prepare as prepare_device
    from magnitude.log import setup

    setup(LogSettings())
    if prepare_device(Device()):
        raise typer.Exit(1)


def grow() -> None:
    """Give the data partition the rest of the card."""
    from functools import partial

    from magnitude.firstboot.grow import GROW_S, grow_data
    from magnitude.units.host import run_quietly

    typer.echo(grow_data(run=partial(run_quietly, within_s=GROW_S)))


def announce(
    issue: Annotated[Path, typer.Option("--issue", help="The file for the login prompt.")] = ISSUE,
) -> None:
    """Say on the console, and above the login prompt, whether the service is ready."""
    from magnitude.firstboot.announcement import announce as announcement_of
    from magnitude.firstboot.device import Device, read_facts
    from magnitude.persist import write_atomic
    from magnitude.units.host import run_quietly

    said = announcement_of(read_facts(Device()))
    typer.echo(said.line)
    issue.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(issue, said.issue.encode())
    # Prompts that nobody has typed at are shown again, with the new text.
    run_quietly(("agetty", "--reload"))
