"""`magnitude install-units`: make this installation a service of systemd."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from magnitude.units.place import Placed

# Units that are made to start with the system, and the folder of links that does it.
ENABLED = (("multi-user.target.wants", "magnitude.service"), ("sockets.target.wants", "magnitude.socket"))
# The same for those that only an image has.
IMAGE_ENABLED = (("multi-user.target.wants", "magnitude-boot-check.service"),)


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
    from magnitude.units.layout import Installation, plan
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
    if here:
        _activate(prefix, enable=enable, image=image)
    elif enable:
        _link(root, prefix, image=image)
    typer.echo("\nNext:")
    if here:
        typer.echo(f"  sudo systemctl {'restart' if host.is_active('magnitude.service') else 'start'} magnitude")
    else:
        typer.echo("  boot the system, then: magnitude wait")
    typer.echo("  systemctl status magnitude")


def _activate(prefix: str, *, enable: bool, image: bool) -> None:
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
    if enable:
        commands.append(("systemctl", "enable", *(unit for _, unit in _enabled(image))))
    for command in commands:
        failure = host.run_quietly(command)
        typer.echo(f"ran        {' '.join(command)}" if failure is None else f"warning    {failure}")


def _enabled(image: bool) -> tuple[tuple[str, str], ...]:
    return (*ENABLED, *IMAGE_ENABLED) if image else ENABLED


def _link(root: Path, prefix: str, *, image: bool) -> None:
    """What `systemctl enable` does, for a tree whose systemd does not run."""
    for folder, unit in _enabled(image):
        link = root / "etc/systemd/system" / folder / unit
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(f"{prefix.rstrip('/')}/lib/systemd/system/{unit}")
        typer.echo(f"enabled    {unit}")


def _remove(root: Path, prefix: str, *, dry_run: bool) -> None:
    from magnitude.units import host
    from magnitude.units.place import remove

    here = root == Path("/")
    units = [unit for _, unit in ENABLED]
    if not dry_run and here:
        failure = host.run_quietly(("systemctl", "disable", *(("--now",) if host.is_booted() else ()), *units))
        typer.echo(f"stopped    {' '.join(units)}" if failure is None else f"warning    {failure}")
    if not dry_run:
        for folder, unit in _enabled(image=True):
            (root / "etc/systemd/system" / folder / unit).unlink(missing_ok=True)
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
