"""The slot tool: who knows the slots, and tells the boot loader. RAUC's command line behind a small protocol."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Protocol

import msgspec

from magnitude.errors import MagnitudeError
from magnitude.units.host import COMMAND_S, HostCommandFailed, output_of
from magnitude.update.terms import FACTORY, Slot

# Copying a root file system to a slow card takes minutes.
INSTALL_S = 3600.0


class SlotToolError(MagnitudeError):
    """The slot tool could not be run, failed, or said something that makes no sense."""

    code = "slot_tool_failed"


class SlotTool(Protocol):
    """Every method raises `SlotToolError`."""

    def slots(self) -> tuple[Slot, ...]:
        """The slots that can be booted; empty on a device that has none."""
        ...

    def mark_good(self, name: str) -> None:
        """Give the slot all its tries again."""
        ...

    def mark_bad(self, name: str) -> None:
        """Have the boot loader start it no more."""
        ...

    def install(self, bundle: str) -> None:
        """Write an update into the slot that is not running, and let it be tried at the next boot."""
        ...


class _Bundle(msgspec.Struct, frozen=True):
    version: str = ""


class _Checksum(msgspec.Struct, frozen=True):
    sha256: str = ""


class _Installed(msgspec.Struct, frozen=True):
    timestamp: str = ""
    count: int = 0


class _SlotStatus(msgspec.Struct, frozen=True):
    bundle: _Bundle = _Bundle()
    checksum: _Checksum = _Checksum()
    installed: _Installed | None = None


class _Slot(msgspec.Struct, frozen=True):
    state: str | None = None
    bootname: str | None = None
    boot_status: str | None = None
    slot_status: _SlotStatus = _SlotStatus()


class _Status(msgspec.Struct, frozen=True):
    """What `rauc status --detailed --output-format=json` prints (RAUC 1.8 to 1.15), as far as it is read here."""

    slots: list[dict[str, _Slot]] = []


class Rauc:
    """RAUC by its command line: it speaks to its service, which holds the locks. `command` replaces it in tests."""

    def __init__(self, command: Sequence[str] = ("rauc",)) -> None:
        self._command = tuple(command)

    @property
    def present(self) -> bool:
        """Whether there is such a tool here."""
        return shutil.which(self._command[0]) is not None

    def slots(self) -> tuple[Slot, ...]:
        if not self.present:
            return ()
        said = self._run("status", "--detailed", "--output-format=json")
        try:
            status = msgspec.json.decode(said, type=_Status)
        except msgspec.MsgspecError as error:
            raise SlotToolError(
                f"{self._command[0]} status said something that is not understood: {error}",
                hint="RAUC has to be built with JSON support (`rauc status --output-format=json` shows it)",
            ) from error
        named = [(name, slot) for entry in status.slots for name, slot in entry.items()]
        return tuple(_slot(name, slot) for name, slot in named if slot.bootname)

    def mark_good(self, name: str) -> None:
        self._run("status", "mark-good", name)

    def mark_bad(self, name: str) -> None:
        self._run("status", "mark-bad", name)

    def install(self, bundle: str) -> None:
        self._run("install", bundle, within_s=INSTALL_S, to_terminal=True)

    def _run(self, *arguments: str, within_s: float = COMMAND_S, to_terminal: bool = False) -> str:
        try:
            return output_of((*self._command, *arguments), within_s=within_s, to_terminal=to_terminal)
        except HostCommandFailed as error:
            raise SlotToolError(error.message, hint="Look at `journalctl -u rauc`") from error


def _slot(name: str, slot: _Slot) -> Slot:
    status = slot.slot_status
    content = FACTORY
    if status.installed is not None:
        content = f"{status.checksum.sha256}:{status.installed.timestamp}:{status.installed.count}"
    return Slot(
        name=name,
        bootname=slot.bootname or "",
        booted=slot.state == "booted",
        bootable=slot.boot_status == "good",
        content=content,
        version=status.bundle.version,
    )
