"""One id a device, on a root that is the same on all of them and cannot be written. Pure.

With an empty /etc/machine-id on a read-only root systemd makes an id anew at every boot and keeps it in memory. The
first one is kept here, and written where the boot loader finds it (a file on the boot partition for GRUB, its own
environment for U-Boot): it passes it on as `systemd.machine_id=` (kernel-command-line(7)), and from the second boot
on the device is itself. Where /etc can be written systemd keeps the id by itself, and what is kept here is the same.
"""

from __future__ import annotations

import re

import msgspec

# Read by GRUB (`source`), and by a U-Boot without an environment on the card (`env import -t`): `NAME=VALUE` is a
# line of both.
BOOT_FILE = "machine-id.env"
# The variable in U-Boot's environment.
BOOT_VARIABLE = "MACHINE_ID"

_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")  # machine-id(5): 32 hexadecimal digits, not all of them zero
_LINE = re.compile(r"machine_id=([0-9a-f]{32})\n")


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The device's `own` id ("" when there is none), and what to do: ids to keep and to hand to the boot loader (""
    for nothing to write), and a sentence for the log when this boot runs under another id."""

    own: str = ""
    keep: str = ""
    for_boot_loader: str = ""
    notice: str = ""


def is_machine_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def boot_file(machine_id: str) -> str:
    return f"machine_id={machine_id}\n"


def settle(*, running: str, kept: str, at_boot_loader: str | None) -> Identity:
    """`running`: this boot's id; `kept`: the device's own, "" when there is none yet; `at_boot_loader`: the text of
    the boot loader's file, None where nothing can be written for it."""
    own = kept if is_machine_id(kept) else running
    if not is_machine_id(own):
        return Identity(notice="this boot has no machine id, and none is kept")
    found = _LINE.fullmatch(at_boot_loader or "")
    told = found is not None and found[1] == own
    notice = ""
    if running != own and told:
        notice = "the boot loader does not pass the device's machine id on: this boot runs under another one"
    return Identity(
        own=own,
        keep=own if own != kept else "",
        for_boot_loader="" if told or at_boot_loader is None else own,
        notice=notice,
    )
