"""That the service is to stop, why, and with which exit status."""

from __future__ import annotations

import asyncio
import logging

log = logging.getLogger("magnitude.supervise")


class Stopping:
    """Asked for once: what comes later finds the service on its way out already."""

    def __init__(self) -> None:
        self.status = 0
        self.reason = ""
        self._asked = asyncio.Event()

    @property
    def asked(self) -> asyncio.Event:
        """Set as soon as somebody asked."""
        return self._asked

    def ask(self, reason: str, status: int = 0) -> None:
        """Stop in order and leave with `status`, one of `supervise.exit_status` (0: as wanted)."""
        if self._asked.is_set():
            return
        self.reason, self.status = reason, status
        level = logging.ERROR if status else logging.INFO
        log.log(level, "stopping", extra={"fields": {"reason": reason, "status": status}})
        self._asked.set()
