"""Being told of a shortage of memory when it begins, instead of looking for it.

systemd (254 and later) names a file in `$MEMORY_PRESSURE_WATCH`, and in `$MEMORY_PRESSURE_WRITE` (base64) what to
write to it first; the protocol is its page "Memory Pressure Handling". Without that the kernel is asked directly:
for the process's own control group, else for the board. A kernel without pressure stall information tells nobody.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import os
import select
import socket
import stat
from collections.abc import Callable, MutableMapping
from pathlib import Path

from magnitude.board.memory_stall import stall_files
from magnitude.board.roots import HostRoots

log = logging.getLogger("magnitude.memory")

# Told when tasks waited for memory for 200 ms within 2 s: systemd's own default. Two seconds are also the only window
# (and its multiples) that the kernel grants a process without privileges (since 6.5).
TRIGGER = b"some 200000 2000000\0"
# After an alarm nothing is heard for so long: a source that never falls silent must not keep the loop busy.
DEAF_S = 1.0
# What is read from a pipe or a socket at a time. Only that something came matters.
_READ_BYTES = 4096


class PressureWatch:
    """Calls `on_alarm` on the event loop. `source` says who tells: `systemd`, `group`, `board` or `none`.

    The variables are taken out of `environ`: they are meant for this process alone.
    """

    def __init__(self, on_alarm: Callable[[], None], *, roots: HostRoots, environ: MutableMapping[str, str]) -> None:
        self._on_alarm = on_alarm
        self._roots = roots
        self._path = environ.pop("MEMORY_PRESSURE_WATCH", "")
        self._write = environ.pop("MEMORY_PRESSURE_WRITE", "")
        self._fd: int | None = None
        self._poll: select.epoll | None = None
        self._reads = False
        self._timer: asyncio.TimerHandle | None = None
        self.source = "none"

    def start(self) -> None:
        """Begin, with the first source that can be had; when that one ends, with another."""
        if self._path == os.devnull:
            return  # the unit's way to say that nobody wants to be told
        *groups, board = map(str, stall_files(self._roots))
        candidates = [("systemd", self._path)] if self._path else []
        candidates += [*(("group", path) for path in groups), ("board", board)]
        for source, path in candidates:
            try:
                self._open(Path(path), self._asked() if source == "systemd" else TRIGGER)
            except (OSError, ValueError) as error:
                fields = {"source": source, "path": path, "reason": str(error)}
                level = logging.WARNING if source == "systemd" else logging.DEBUG
                log.log(level, "memory pressure is not told", extra={"fields": fields})
                self.close()
            else:
                self.source = source
                return

    def close(self) -> None:
        self.source = "none"
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._poll is not None:
            asyncio.get_running_loop().remove_reader(self._poll.fileno())
            self._poll.close()
            self._poll = None
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _asked(self) -> bytes:
        try:
            return base64.b64decode(self._write, validate=True)
        except binascii.Error as error:
            raise ValueError(f"MEMORY_PRESSURE_WRITE is no base64: {error}") from error

    def _open(self, path: Path, write: bytes) -> None:
        mode = path.stat().st_mode
        self._reads = not stat.S_ISREG(mode)
        if stat.S_ISSOCK(mode):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.connect(str(path))
                sock.setblocking(False)
                self._fd = sock.detach()
        elif stat.S_ISREG(mode) or stat.S_ISFIFO(mode):
            self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        else:
            raise ValueError(f"{path} is neither a file nor a pipe nor a socket")
        with select.epoll() as probe:  # a file that is not the kernel's cannot be waited for, and is left as it is
            probe.register(self._fd, select.EPOLLPRI)
        if write:
            os.write(self._fd, write)
        self.watch(self._fd, select.EPOLLIN if self._reads else select.EPOLLPRI)

    def watch(self, fd: int, events: int) -> None:
        """Listen for `events` on `fd`. The loop's selector knows only readable and writable; an epoll descriptor is
        readable when anything it waits for has come, so one of our own stands in between."""
        self._poll = select.epoll()
        self._poll.register(fd, events)
        asyncio.get_running_loop().add_reader(self._poll.fileno(), self._ready)

    def _ready(self) -> None:
        assert self._poll is not None
        # The kernel hands a trigger's event out once: the loop's own poll may have taken it, and this one comes back
        # empty. That the descriptor was readable is the alarm.
        seen = 0
        for _, events in self._poll.poll(0):
            seen |= events
        gone = bool(seen & (select.EPOLLERR | select.EPOLLHUP)) or (self._reads and not self._drained())
        if gone:
            log.warning("memory pressure is not told any more", extra={"fields": {"source": self.source}})
            self.close()
            self._path = ""
            self.start()
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._poll.fileno())
        self._timer = loop.call_later(DEAF_S, self._listen_again)
        self._on_alarm()

    def _listen_again(self) -> None:
        if self._poll is not None:
            asyncio.get_running_loop().add_reader(self._poll.fileno(), self._ready)

    def _drained(self) -> bool:
        """Read what a pipe or a socket has; False when nobody writes to it any more."""
        assert self._fd is not None
        with contextlib.suppress(BlockingIOError):
            return bool(os.read(self._fd, _READ_BYTES))
        return True
