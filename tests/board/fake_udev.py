"""A source of device events for tests: real sockets and descriptors, and the faults that real ones show."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable

import msgspec

from magnitude.board.device_event import Device, DeviceEvent
from magnitude.board.event_source import Unavailable

OVERFLOW = b"overflow"


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Far longer than anything here takes, so that a busy machine is no failure."""
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, "it did not come"
        time.sleep(0.002)


def device(name: str, subsystem: str = "usb", **properties: str) -> Device:
    return Device(path=f"/devices/{name}", subsystem=subsystem, name=name, properties=properties)


def added(it: Device) -> DeviceEvent:
    return DeviceEvent(
        action="add", subsystem=it.subsystem, name=it.name, path=it.path, properties=dict(it.properties)
    )


class FakeFeed:
    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    def fileno(self) -> int:
        return self.socket.fileno()

    def fault(self) -> int:
        return self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def receive(self) -> DeviceEvent | None:
        try:
            packet = self.socket.recv(65536)
        except BlockingIOError:
            return None
        if packet == OVERFLOW:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        if not packet:
            raise OSError("the other side has gone")
        return msgspec.json.decode(packet, type=DeviceEvent)

    def close(self) -> None:
        self.socket.close()


class FakeUdev:
    """`there` are the devices that a look finds. Each connection is a pair of sockets; the other ends are kept."""

    def __init__(self) -> None:
        self.there: list[Device] = []
        self.buffers: list[int] = []
        self.ends: list[socket.socket] = []
        self.feeds: list[FakeFeed] = []
        self.unavailable = ""
        self.refuses = 0  # so many attempts to connect fail
        self.looks = 0  # that began
        self.seen = 0  # that came to their end
        self.look: Callable[[], None] = lambda: None  # may raise, or take its time

    def source(self) -> FakeUdev:
        return self

    def open(self, buffer_bytes: int) -> FakeFeed | Unavailable:
        if self.unavailable:
            return Unavailable(self.unavailable)
        if self.refuses:
            self.refuses -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.buffers.append(buffer_bytes)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.ends.append(theirs)
        self.feeds.append(FakeFeed(ours))
        return self.feeds[-1]

    def devices(self) -> list[Device]:
        self.looks += 1
        self.look()
        there = list(self.there)
        self.seen += 1
        return there

    def tell(self, *events: DeviceEvent) -> None:
        for event in events:
            self.ends[-1].send(msgspec.json.encode(event))

    def plug(self, it: Device) -> None:
        self.there.append(it)
        self.tell(added(it))

    def overflow(self) -> None:
        self.ends[-1].send(OVERFLOW)

    def hang_up(self) -> None:
        """The other side goes: POLLHUP, and reading gives nothing."""
        self.ends[-1].close()

    def break_off(self) -> None:
        """The other side goes with something unread, which the kernel makes an error: POLLERR beside POLLIN."""
        self.tell(added(device("last")))
        self.feeds[-1].socket.send(b"never read")
        self.ends[-1].close()
