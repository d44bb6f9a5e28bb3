"""`magnitude install-units`: make this installation a service of systemd."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from magnitude.units.place import Placed


def register(app: typer.Typer) -> None:
    app.command("install-units")(install_units)


def install_units(  # noqa: PLR0917
    root: Annotated[Path, typer.Option("--root", metavar="DIR", help="Install below DIR, for an image.")] = Path("/"),
    prefix: Annotated[
        str, typer.Option("--prefix", help="Where the files go; a package of the distribution uses /usr.")
    ] = "/usr/local",
    systemd_version: Annotated[
        int | None,
        typer.Option("--systemd-version", metavar="N", help="Choose drop-ins for this version.", show_default=False),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--command", metavar="PATH", help="The magnitude that the unit starts.", show_default="this one"
        ),
    ] = None,
    image: Annotated[
        bool, typer.Option("--image", help="The device is ours: cap the journal, reboot once as the last step.")
    ] = False,
    enable: Annotated[bool, typer.Option("--enable/--no-enable", help="Start the service at boot.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Stop the service and take the units away.")] = False,
) -> None:
    """Put the systemd units of this installation in place, or take them away."""
    from magnitude.units import host
    from magnitude.units.layout import Installation, enabled, plan
    from magnitude.units.place import place
    from magnitude.units.shipped import read_shipped, shipped_folder

    root = root.absolute()
    here = root == Path("/")
    if not dry_run:
        host.require_root(root, os.geteuid())
    if remove:
        _remove(root, prefix, dry_run=dry_run)
        return
    own = command or host.own_command()
    files = plan(
        read_shipped(shipped_folder()),
        Installation(
            systemd_version=systemd_version or host.systemd_version(root),
            prefix=prefix,
            command=own,
            image=image,
            command_in_home=command is None and here and host.lies_in_home(host.own_folders(own)),
        ),
    )
    try:
        placed = place(files, root, prefix, dry_run=dry_run)
    except OSError as error:
        raise _cannot_write(error) from error
    _print(placed)
    if dry_run:
        return
    starting = enabled(files) if enable else []
    if here:
        _activate(prefix, [Path(unit).name for _, unit in starting])
    else:
        _link(root, starting)
    typer.echo("\nNext:")
    if here:
        typer.echo(f"  sudo systemctl {'restart' if host.is_active('magnitude.service') else 'start'} magnitude")
    else:
        typer.echo("  boot the system, then: magnitude wait")
    typer.echo("  systemctl status magnitude")


def _activate(prefix: str, units: Sequence[str]) -> None:
    """Make the running system know the user, the folders, the rules and the units."""
    from magnitude.units import host

    library = f"{prefix.rstrip('/')}/lib"
    commands: list[tuple[str, ...]] = [("systemd-sysusers", f"{library}/sysusers.d/magnitude.conf")]
    if host.is_booted():
        commands += [
            ("systemd-tmpfiles", "--create", f"{library}/tmpfiles.d/magnitude.conf"),  # noqa: S108
            ("udevadm", "control", "--reload"),
            ("systemctl", "daemon-reload"),
        ]
    if units:
        commands.append(("systemctl", "enable", *units))
    for command in commands:
        failure = host.run_quietly(command)
        typer.echo(f"ran        {' '.join(command)}" if failure is None else f"warning    {failure}")


def _link(root: Path, starting: Sequence[tuple[str, str]]) -> None:
    """What `systemctl enable` does, for a tree whose systemd does not run."""
    for folder, unit in starting:
        link = root / "etc/systemd/system" / folder / Path(unit).name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(unit)
        typer.echo(f"enabled    {Path(unit).name}")


def _remove(root: Path, prefix: str, *, dry_run: bool) -> None:
    from magnitude.units import host
    from magnitude.units.layout import enabled
    from magnitude.units.place import installed, remove

    here = root == Path("/")
    starting = enabled(installed(root, prefix))
    units = [Path(unit).name for _, unit in starting]
    if not dry_run and here and units:
        failure = host.run_quietly(("systemctl", "disable", *(("--now",) if host.is_booted() else ()), *units))
        typer.echo(f"stopped    {' '.join(units)}" if failure is None else f"warning    {failure}")
    if not dry_run:
        for folder, unit in starting:
            (root / "etc/systemd/system" / folder / Path(unit).name).unlink(missing_ok=True)
    try:
        removed = remove(root, prefix, dry_run=dry_run)
    except OSError as error:
        raise _cannot_write(error) from error
    _print(removed)
    if not dry_run and here and host.is_booted():
        host.run_quietly(("systemctl", "daemon-reload"))
    typer.echo("\nConfiguration, state, models and the user magnitude stay.")


def _print(placed: Sequence[Placed]) -> None:
    for file in placed:
        typer.echo(f"{file.change:<10} {file.path}")


def _cannot_write(error: OSError) -> Exception:
    from magnitude.errors import MagnitudeError

    return MagnitudeError(
        f"{error.filename or 'a file'} cannot be written: {error.strerror or error}",
        hint="Files that were already written are whole; run it again once the reason is gone. "
        "Where /usr is read-only, install into the image that it comes from: --root DIR.",
        code="units_not_written",
    )
