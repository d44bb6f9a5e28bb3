"""A service manager in a test process, as far as descriptors go: it takes what a service notifies and stores over a
real datagram socket, and hands sockets and stored descriptors to the next start as sd_listen_fds(3) says.

It differs from systemd in that nothing is killed or started by itself: the test does that.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

PATIENCE_S = 60.0
# Above all that a start can hand over: two sockets, and two descriptors for each model.
FIRST_FREE_FD = 100
# SCM_MAX_FD of the kernel.
_MAX_FDS = 253

# Between fork and exec: the descriptors from 3 on, and the number of the process.
_SHIM = """
import os, sys
given = [int(number) for number in sys.argv[1].split(",") if number]
for number, fd in enumerate(given):
    os.dup2(fd, 3 + number)
if given:
    os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(given)), "LISTEN_FDNAMES": sys.argv[2]}
os.execvp(sys.argv[3], sys.argv[3:])
"""


class StoredFd(NamedTuple):
    name: str
    fd: int


class FdStore:
    """Leaving the block closes everything that is stored. `limit` is FileDescriptorStoreMax=."""

    def __init__(self, folder: Path, *, limit: int = 64) -> None:
        self.path = folder / "notify.sock"
        self.stored: list[StoredFd] = []
        self.messages: list[dict[str, str]] = []
        self._limit = limit
        self._lock = threading.Lock()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(str(self.path))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def start(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        sockets: Iterable[tuple[str, socket.socket]] = (),
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Start `command` with the named sockets and everything that is stored. `options` are those of `Popen`."""
        with self._lock:
            handed = [*((name, sock.fileno()) for name, sock in sockets), *self.stored]
            # Free numbers beyond those that the shim fills, so that none is overwritten before it is copied.
            given = [(name, fcntl.fcntl(fd, fcntl.F_DUPFD, FIRST_FREE_FD)) for name, fd in handed]
        numbers, names = ",".join(str(fd) for _, fd in given), ":".join(name for name, _ in given)
        try:
            return subprocess.Popen(
                [sys.executable, "-c", _SHIM, numbers, names, *command],
                env={**environ, "NOTIFY_SOCKET": str(self.path)},
                pass_fds=[fd for _, fd in given],
                **options,
            )
        finally:
            for _, fd in given:
                os.close(fd)

    def put(self, name: str, fd: int) -> None:
        """Store a copy of `fd` as if the service had sent it."""
        with self._lock:
            self.stored.append(StoredFd(name, os.dup(fd)))

    def names(self) -> list[str]:
        with self._lock:
            return sorted(stored.name for stored in self.stored)

    def told(self, field: str) -> list[str]:
        """All values of a field so far, in order."""
        with self._lock:
            return [message[field] for message in self.messages if field in message]

    def until(self, fact: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not fact():
            assert time.monotonic() < deadline, "what was waited for did not come about"
            time.sleep(0.02)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._thread.join(PATIENCE_S)
        with self._lock:
            for stored in self.stored:
                os.close(stored.fd)
            self.stored.clear()

    def _read(self) -> None:
        space = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
        while True:
            try:
                data, ancillary, _, _ = self._sock.recvmsg(65536, space, socket.MSG_CMSG_CLOEXEC)
            except OSError:
                return
            if not data:
                return
            fds = array.array("i")
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
            message = dict(line.split("=", 1) for line in data.decode().splitlines() if "=" in line)
            with self._lock:
                self.messages.append(message)
                self._store(message, list(fds))

    def _store(self, message: dict[str, str], fds: list[int]) -> None:
        name = message.get("FDNAME", "stored")
        if message.get("FDSTOREREMOVE") == "1":
            for stored in [stored for stored in self.stored if stored.name == name]:
                self.stored.remove(stored)
                os.close(stored.fd)
        for fd in fds:
            known = any(os.path.sameopenfile(stored.fd, fd) for stored in self.stored)
            if message.get("FDSTORE") == "1" and not known and len(self.stored) < self._limit:
                self.stored.append(StoredFd(name, fd))
            else:
                os.close(fd)
