"""Talking to the service manager: sd_notify(3), with descriptors.

Own code, though small libraries for this exist (`sdnotify`): they send text only, and the memory of conversations
goes to the manager's file-descriptor store as descriptors beside the text.

Nothing here ever waits. The manager's socket can be full for a moment; what must not be lost then is kept and goes
out in order with the next message, the rest (a status, a ping) is followed by another one anyway.
"""

from __future__ import annotations

import array
import errno
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, MutableMapping, Sequence
from typing import Self

log = logging.getLogger("magnitude.supervise")

# sockaddr_un holds 108 bytes, of which a path needs one for its final NUL (unix(7)).
_MAX_PATH_BYTES = 107
# SCM_MAX_FD of the kernel: more descriptors in one message are refused.
_MAX_FDS = 253
# sd_notify(3) on FDNAME=: at most 255 characters, none of them a control character or a colon.
_MAX_NAME_CHARS = 255
# A status that is longer than a line of a terminal helps nobody.
_MAX_STATUS_CHARS = 300
# More than a start, a reload and a stop leave behind while the manager does not read.
_MAX_KEPT = 16

# The last one says how many descriptors the manager keeps (systemd 254 and newer): nobody else's business either.
VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "FDSTORE")


def _address_of(text: str) -> str | bytes | None:
    """The address to send to; None when there is none that we can use."""
    if not text or text[0] not in "/@":  # also `vsock:` of virtual machines
        return None
    encoded = os.fsencode(text)
    if text[0] == "@":
        # An abstract address: its first byte is NUL, and there is none at its end.
        return b"\0" + encoded[1:] if 1 < len(encoded) <= _MAX_PATH_BYTES + 1 else None
    return text if len(encoded) <= _MAX_PATH_BYTES else None


def _watchdog_s(usec: str, pid: str) -> float | None:
    """The manager's patience between two pings, as sd_watchdog_enabled(3) reads it. None: it does not watch us."""
    if pid and pid != str(os.getpid()):
        return None
    return int(usec) / 1e6 if usec.isascii() and usec.isdecimal() and int(usec) > 0 else None


class Notifier:
    """Tells the service manager how the service is. Without a manager every call does nothing.

    Calls that answer a bool say whether the message has been handed over. `clock` must be CLOCK_MONOTONIC in s.
    """

    def __init__(
        self,
        address: str | bytes | None,
        *,
        watchdog_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._watchdog_s = watchdog_s if address is not None else None
        self._clock = clock
        self._kept: deque[bytes] = deque(maxlen=_MAX_KEPT)
        self._sock: socket.socket | None = None
        if address is not None:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)  # close-on-exec, as all in Python
            self._sock.setblocking(False)

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str], *, clock: Callable[[], float] = time.monotonic) -> Self:
        """The manager that `environ` names. Takes its variables out of `environ`: only this process speaks."""
        values = {name: environ.pop(name, "") for name in VARIABLES}
        address = _address_of(values["NOTIFY_SOCKET"])
        if address is None and values["NOTIFY_SOCKET"]:
            log.debug("no service manager that we can talk to", extra={"fields": {"at": values["NOTIFY_SOCKET"]}})
        watchdog_s = _watchdog_s(values["WATCHDOG_USEC"], values["WATCHDOG_PID"])
        return cls(address, watchdog_s=watchdog_s, clock=clock)

    @property
    def active(self) -> bool:
        """Whether somebody listens."""
        return self._sock is not None

    @property
    def watchdog_s(self) -> float | None:
        """Longest time between two pings before the manager kills us; None: it does not watch."""
        return self._watchdog_s

    def ready(self, status: str) -> None:
        """The service serves, for the first time or again after `reloading`."""
        self._send_surely(f"READY=1\nSTATUS={_line(status)}")

    def status(self, text: str) -> bool:
        """One line for `systemctl status`."""
        return self._send(f"STATUS={_line(text)}")

    def stopping(self, status: str = "stopping") -> None:
        """The service is on its way out."""
        self._send_surely(f"STOPPING=1\nSTATUS={_line(status)}")

    def reloading(self) -> None:
        """The configuration is being read again; `ready` must follow. The time lets the manager tell this reload's
        answer from an earlier one's."""
        self._send_surely(f"RELOADING=1\nMONOTONIC_USEC={int(self._clock() * 1e6)}")

    def watchdog(self) -> None:
        """All is well."""
        self._send("WATCHDOG=1")

    def extend_timeout_s(self, seconds: float) -> None:
        """Ask for so much time from now on for what is under way (start or stop)."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def store(self, name: str, fds: Sequence[int]) -> bool:
        """Hand copies of `fds` to the manager, which gives them back under `name` to the next run of the service.

        It does not watch them for a hang-up, which is meaningless for memory. Raises `ValueError` for a name or a
        number of descriptors that the manager cannot take.
        """
        _check_name(name)
        if not 0 < len(fds) <= _MAX_FDS:
            raise ValueError(f"{len(fds)} descriptors cannot be stored in one message, at most {_MAX_FDS} can")
        return self._send(f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0", fds)

    def remove(self, name: str) -> bool:
        """Let the manager close the descriptors that it holds under `name`."""
        _check_name(name)
        return self._send(f"FDSTOREREMOVE=1\nFDNAME={name}")

    def flush(self) -> bool:
        """Try again to send what is kept; True when nothing is left."""
        while self._kept:
            if self._try(self._kept[0], ()) is None:
                return False
            self._kept.popleft()
        return True

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _send_surely(self, text: str) -> None:
        """Send, and keep it for later when the manager does not take it now."""
        data = text.encode()
        if self._sock is not None and (not self.flush() or self._try(data, ()) is None):
            self._kept.append(data)

    def _send(self, text: str, fds: Sequence[int] = ()) -> bool:
        return self._sock is not None and self.flush() and self._try(text.encode(), fds) is True

    def _try(self, data: bytes, fds: Sequence[int]) -> bool | None:
        """True: sent. False: it never will be. None: not now."""
        if self._sock is None:
            return False
        # Not `socket.send_fds`, which does not hand on the address that it is given.
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._sock.sendmsg([data], rights, 0, self._address)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in (errno.ENOBUFS, errno.ENOMEM):
                return None
            log.debug("the service manager was not reached", extra={"fields": {"error": error.strerror}})
            return False
        return True


def _line(text: str) -> str:
    """`text` as one line: a line break would begin another assignment of the message."""
    return " ".join(text.split())[:_MAX_STATUS_CHARS]


def _check_name(name: str) -> None:
    if not 0 < len(name) <= _MAX_NAME_CHARS or not name.isascii() or not name.isprintable() or ":" in name:
        raise ValueError(f"{name!r} cannot name a stored descriptor")
