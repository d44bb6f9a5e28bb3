"""Asking for permissions that the service cannot give itself.

Files below /sys belong to root, and the kernel makes them anew when a driver is loaded late or a CPU comes back: what
the privileged helper opened before the start is closed again then. The service writes a file in its run folder;
systemd, which watches it (magnitude-permissions.path), runs the helper. The file's content is for people: nobody
who is privileged reads it.
"""

from __future__ import annotations

import logging
from pathlib import Path

log = logging.getLogger("magnitude.supervise")

REQUEST_NAME = "permissions-wanted"  # the path unit names it too
# The helper is done within milliseconds, so what still refuses after a minute will go on to do so; and the path unit
# ends its watch when it is triggered ten times in a minute.
ASK_EVERY_S = 60.0


class PermissionRequests:
    """Asks on behalf of whoever met a file that should be writable and is not. `now_s` is monotonic time."""

    def __init__(self, run_folder: Path) -> None:
        self._file = run_folder / REQUEST_NAME
        self._asked_s: float | None = None

    def ask(self, refused: Path, now_s: float) -> bool:
        """Ask to have `refused` opened again, unless that was asked for a moment ago. True when it was asked for:
        trying again in a second is then worth it."""
        if self._asked_s is not None and now_s - self._asked_s < ASK_EVERY_S:
            return False
        self._asked_s = now_s
        try:
            self._file.write_text(f"{refused}\n")
        except OSError as error:
            fields = {"file": str(refused), "error": error.strerror or str(error)}
            log.warning("permissions cannot be asked for", extra={"fields": fields})
            return False
        log.info("permissions asked for", extra={"fields": {"file": str(refused)}})
        return True
