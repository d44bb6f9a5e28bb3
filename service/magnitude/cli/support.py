"""`magnitude support`: one archive for whoever helps, without prompts, answers and secrets."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from magnitude.cli.options import ConfigOption, KeyOption, UrlOption

if TYPE_CHECKING:
    from magnitude.cli.client import ServiceClient


def register(app: typer.Typer) -> None:
    app.command("support")(support)


def support(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to write it (magnitude-support-TIME.tar.gz here)."
        ),
    ] = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Gather versions, configuration, doctor, state, metrics, records, failures and the journal's end in one file.

    Without prompts, answers and secrets, and also while the service is down. Nothing is sent anywhere.
    """
    from magnitude.board.boot import Clocks
    from magnitude.cli.client import ServiceUnreachable, candidates, connect
    from magnitude.doctor import make_context
    from magnitude.doctor.support import Ask, SupportContext, collect, write_archive
    from magnitude.errors import MagnitudeError

    doctor = make_context(config)
    clocks = Clocks()
    client: ServiceClient | None = None
    ask: Ask | None = None
    silence = ""
    try:
        client = connect(candidates(doctor.settings, doctor.paths, url), api_key)
        ask = client.text
    except ServiceUnreachable as error:
        silence = error.message
    try:
        files = collect(
            SupportContext(
                doctor=doctor,
                ask=ask,
                silence=silence,
                search_path=os.environ.get("PATH", os.defpath),
                environ=dict(os.environ),
                clocks=clocks,
            )
        )
    finally:
        if client is not None:
            client.close()
    moment = datetime.fromtimestamp(clocks.wall(), UTC).strftime("%Y%m%d-%H%M%S")
    path = output or Path(f"magnitude-support-{moment}.tar.gz")
    try:
        write_archive(path, files, clocks.wall())
    except OSError as error:
        raise MagnitudeError(
            f"{path} cannot be written: {error.strerror or error}", hint="Name another file with --output"
        ) from error
    if silence:
        typer.echo(f"The service did not answer; what it knows is missing: {silence}", err=True)
    typer.echo(f"wrote {path} ({path.stat().st_size} bytes, {len(files)} files)")
    typer.echo("It holds no prompts, answers or keys. Look through it before you send it.")
