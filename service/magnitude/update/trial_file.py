"""The record of trials, on the partition that both slots share."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from magnitude.persist import StateFile, Unusable, unsealed, write_atomic
from magnitude.update.terms import TrialRecord

# Never raised: two versions share this file in the middle of an update, and the newer one has to see what the older
# one proved, or it would find nothing to fall back to. New fields get a default; unknown ones are passed over.
SCHEMA = 1
# Beside the slot tool's own state: root's alone, and there on every device that has slots.
FOLDER = Path("/var/lib/rauc")
RECORD = "magnitude-trial.json"
# The same in a form for `magnitude-boot-check-failed`, which runs when no Python does: boot name and `system_id`.
PROVED = "magnitude-proved"
# Reboots by that helper; they count until a check passes.
HELPER_REBOOTS = "magnitude-check-reboots"


class TrialFile:
    """Reads and keeps the record in `folder`."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder
        self._file = StateFile(folder / RECORD, TrialRecord, schema=SCHEMA)

    @property
    def off(self) -> str:
        """Why the record is not kept; empty while it is."""
        return self._file.off

    def load(self) -> TrialRecord:
        """The record; an empty one where there is none that can be read."""
        return self._file.load(TrialRecord)

    def peek(self) -> TrialRecord:
        """The same without setting anything aside: for those who only look while the gate may be at work."""
        try:
            return unsealed(self._file.path.read_bytes(), TrialRecord, schema=SCHEMA)
        except (OSError, Unusable):
            return TrialRecord()

    def save(self, record: TrialRecord) -> bool:
        """Keep it. False when the storage refuses."""
        return self._file.save(record)

    def tell_helper(self, bootname: str, system: str) -> bool:
        """Keep for the helper that `system` was proved in the slot `bootname`, and let its count begin anew. False
        when the storage refuses."""
        path = self.folder / PROVED
        lines: list[str] = []
        with contextlib.suppress(OSError, UnicodeDecodeError):
            lines = path.read_text().splitlines()
        others = [line for line in lines if line and line.split(" ")[0] != bootname]
        text = "".join(f"{line}\n" for line in sorted([*others, f"{bootname} {system}"]))
        try:
            if "".join(f"{line}\n" for line in lines) != text:
                write_atomic(path, text.encode())
            (self.folder / HELPER_REBOOTS).unlink(missing_ok=True)
        except OSError:
            return False
        return True


def system_id(os_release: Path = Path("/etc/os-release")) -> str:
    """What the helper can tell systems apart by: the hash of their description; "" where there is none."""
    try:
        return hashlib.sha256(os_release.read_bytes()).hexdigest()
    except OSError:
        return ""
