"""The id that systemd gave this machine at its first boot."""

from __future__ import annotations

from pathlib import Path

from magnitude.board.roots import read_text

MACHINE_ID = Path("/etc/machine-id")


def read_machine_id(path: Path = MACHINE_ID) -> str | None:
    """None where there is none (yet). It is confidential (machine-id(5)): what may be shown is made of it by
    `policy.field_test.app_specific`."""
    text = read_text(path)
    return text if text and text != "uninitialized" else None
