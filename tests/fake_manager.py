"""The service manager's end of sd_notify: a real datagram socket that keeps what it was told."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE_S = 60.0  # a test that waits so long has failed


class FakeManager:
    """Listens at `path`, or at an abstract address when it begins with "@". Use as a context."""

    def __init__(self, path: Path | str) -> None:
        self.address = str(path)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind("\0" + self.address[1:] if self.address.startswith("@") else self.address)
        self.messages: list[dict[str, str]] = []
        self.fds: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.sock.close()
        for fd in self.fds:
            os.close(fd)

    def read(self, wait_s: float = 0.0) -> list[dict[str, str]]:
        """What has come since the last call, message by message; waits for the first at most so long."""
        came: list[dict[str, str]] = []
        self.sock.settimeout(wait_s)
        try:
            while True:
                data, fds, _, _ = socket.recv_fds(self.sock, 1 << 16, 253)
                self.fds += fds
                came.append(dict(line.split("=", 1) for line in data.decode().splitlines()))
                self.sock.settimeout(0.0)
        except (BlockingIOError, TimeoutError):
            pass
        self.messages += came
        return came

    def until(self, key: str, *, after: int = 0) -> dict[str, str]:
        """The first message with `key` behind the first `after` ones; waits for it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for message in self.messages[after:]:
                if key in message:
                    return message
            self.read(0.5)
        raise AssertionError(f"no {key} came; told was: {self.messages}")

    def count(self, key: str) -> int:
        return sum(1 for message in self.messages if key in message)
