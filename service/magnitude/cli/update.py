"""`magnitude update`: system updates on a device with two root slots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from magnitude.cli.doctor import seconds, show
from magnitude.cli.options import ConfigOption, JsonOption, UrlOption

if TYPE_CHECKING:
    from magnitude.update.terms import Known

# Statuses of `check`: unit files name the second one. `magnitude-boot-check-failed` leaves that alone and takes any
# other for a check that could not be made.
EXIT_GIVEN_UP = 3
EXIT_REBOOTING = 4

ToolOption = Annotated[
    str, typer.Option("--slot-tool", metavar="COMMAND", help="Program that knows the slots.", hidden=True)
]
RecordOption = Annotated[
    Path | None,
    typer.Option("--record-folder", metavar="FOLDER", help="Where the record of trials lies.", hidden=True),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="update", help="Install system updates and see what became of them.", no_args_is_help=True
    )
    group.command("status")(status)
    group.command("install")(install)
    group.command("check")(check)
    app.add_typer(group)


def status(as_json: JsonOption = False, tool: ToolOption = "rauc", folder: RecordOption = None) -> None:
    """Show the slots, which of them was proved, and the last update that failed."""
    import msgspec

    from magnitude.update.trial import is_confirmed, standing

    known = look(tool, folder)
    if as_json:
        told = {
            "standing": standing(known),
            "slots": [
                {**msgspec.to_builtins(slot), "confirmed": is_confirmed(slot, known.record)} for slot in known.slots
            ],
            "trial": msgspec.to_builtins(known.record.trial),
        }
        typer.echo(json.dumps(told, indent=2))
        return
    if not known.slots:
        typer.echo("This system has no slots: it is updated as it was installed.")
        return
    for slot in sorted(known.slots, key=lambda slot: slot.bootname):
        words = [
            "running" if slot.booted else "other",
            "proved" if is_confirmed(slot, known.record) else "not proved",
        ]
        if not slot.booted and not slot.bootable:
            words.append("not started by the boot loader")
        typer.echo(f"{slot.bootname}  {slot.version or 'as flashed':<20} {', '.join(words)}")
    trial = known.record.trial
    if trial is not None:
        what = "was taken back" if trial.over else f"fails, rebooted {trial.reboots} times"
        typer.echo(f"The update in slot {trial.slot} {what}: {trial.reason}")


def install(
    bundle: Annotated[str, typer.Argument(help="A .raucb file, or its address.", show_default=False)],
    force: Annotated[
        bool, typer.Option("--force", help="Also while the running system has not been proved.")
    ] = False,
    tool: ToolOption = "rauc",
    folder: RecordOption = None,
) -> None:
    """Write an update into the slot that is not running. It is tried at the next boot, and taken back if it fails."""
    from magnitude.errors import MagnitudeError
    from magnitude.update.slots import Rauc
    from magnitude.update.trial import standing

    known = look(tool, folder)
    where = standing(known)
    if where == "no slots":
        raise MagnitudeError(
            "this system has no slots to install an update into",
            hint="Only images have them; elsewhere update the package or the checkout",
        )
    if where == "on trial" and not force:
        raise MagnitudeError(
            "the running system has not been proved yet, and the update would overwrite the one to fall back to",
            hint="Wait until `magnitude update status` says proved (minutes after a boot), or use --force",
        )
    Rauc((tool,)).install(bundle)
    typer.echo("Installed. `sudo systemctl reboot` tries it; `magnitude update status` shows what became of it.")


def check(
    *,
    config: ConfigOption = None,
    within: Annotated[
        float, typer.Option("--within", parser=seconds, metavar="TIME", help="How long the check may take.")
    ] = 600.0,
    steady: Annotated[
        float, typer.Option("--steady", parser=seconds, metavar="TIME", help="How long without a break.", hidden=True)
    ] = 60.0,
    reboot: Annotated[
        str, typer.Option("--reboot-command", metavar="COMMAND", help="What reboots the device.", hidden=True)
    ] = "systemctl --no-block reboot",
    tool: ToolOption = "rauc",
    folder: RecordOption = None,
    url: UrlOption = None,
) -> None:
    """Check the running system, and mark its slot good, reboot or give up accordingly. For the unit at boot.

    Exit status 0: good, 3: failed and no reboot can mend it, 4: failed and rebooting.
    """
    from magnitude.doctor import make_context
    from magnitude.update.gate import settle
    from magnitude.update.slots import Rauc
    from magnitude.update.this_device import check_this_boot, reboot_by
    from magnitude.update.trial_file import FOLDER, TrialFile, system_id

    report = check_this_boot(make_context(config), within_s=within, told=typer.echo, steady_s=steady, url=url)
    show(report.findings)
    outcome = settle(
        report.verdict,
        Rauc((tool,)),
        TrialFile(folder or FOLDER),
        reboot=reboot_by(tuple(reboot.split())),
        system=system_id(),
    )
    for line in outcome.said:
        typer.echo(line)
    raise typer.Exit({"good": 0, "no slots": 0, "rebooting": EXIT_REBOOTING, "given up": EXIT_GIVEN_UP}[outcome.end])


def look(tool: str, folder: Path | None) -> Known:
    """What is known of the slots. Raises `SlotToolError`."""
    from magnitude.update.slots import Rauc
    from magnitude.update.terms import Known
    from magnitude.update.trial_file import FOLDER, TrialFile

    return Known(slots=Rauc((tool,)).slots(), record=TrialFile(folder or FOLDER).peek())
