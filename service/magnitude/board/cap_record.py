"""What clock limits were before we lowered them, in the run folder, for whoever has to put them back.

It is written before the first cap of a policy, and names the boot and the tree that it belongs to: after a reboot the
kernel has begun anew, and a simulated board's limits are not this board's.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from magnitude.board.boot import same_boot
from magnitude.board.cap_files import POLICY
from magnitude.board.cap_rules import CapEntry
from magnitude.board.roots import HostRoots
from magnitude.persist import MAX_STATE_BYTES, Unusable, sealed, unsealed, write_atomic

log = logging.getLogger("magnitude.board")

RECORD_NAME = "clock-caps.json"
SCHEMA = 1


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    boot_id: str
    sys: str
    policies: dict[str, CapEntry]


class CapRecord:
    """The record in `run_folder`. There is no previous generation of it: that would speak of limits that are no
    longer in force."""

    def __init__(self, run_folder: Path, roots: HostRoots, boot_id: str) -> None:
        self.path = run_folder / RECORD_NAME
        self._sys = str(roots.sys)
        self._boot_id = boot_id

    def load(self) -> dict[str, CapEntry]:
        """The policies that we have lowered and not put back. Empty for a record of another boot or another tree, for
        none, and for one that is not whole. Never raises."""
        try:
            with self.path.open("rb") as file:
                record = unsealed(file.read(MAX_STATE_BYTES), _Record, schema=SCHEMA)
        except FileNotFoundError:
            return {}
        except (OSError, Unusable) as why:
            log.warning("the record of clock limits cannot be used", extra={"fields": {"why": str(why)}})
            return {}
        if not same_boot(record.boot_id, self._boot_id) or record.sys != self._sys:
            return {}
        return {name: entry for name, entry in record.policies.items() if POLICY.fullmatch(name) and entry.ours_khz}

    def save(self, policies: dict[str, CapEntry]) -> str:
        """Note `policies`, or remove the record when there are none. Why that failed; "" when it is done."""
        if not same_boot(self._boot_id, self._boot_id):
            return "the id of this boot cannot be read, so a record would be no good after the next"
        try:
            if policies:
                record = _Record(boot_id=self._boot_id, sys=self._sys, policies=policies)
                write_atomic(self.path, sealed(record, schema=SCHEMA))
            else:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            return f"{self.path} cannot be written: {error.strerror or error}"
        return ""
