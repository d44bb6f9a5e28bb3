"""Where device events come from: what `DeviceEvents` needs of udev, and udev itself."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path
from typing import Any, Protocol

import msgspec

from magnitude.board.device_event import WATCHED, Device, DeviceEvent, is_watched, telling
from magnitude.board.device_list import list_devices
from magnitude.board.roots import HostRoots

# A process may not have netlink sockets here (RestrictAddressFamilies=, a container): asking again soon is no use.
_REFUSED = (errno.EAFNOSUPPORT, errno.EPERM, errno.EACCES, errno.EPROTONOSUPPORT)


class Unavailable(msgspec.Struct, frozen=True):
    """There are no events here, for `reason`."""

    reason: str


class Feed(Protocol):
    """An open connection. Its descriptor is readable when there is an event, or a fault."""

    def fileno(self) -> int: ...

    def receive(self) -> DeviceEvent | None:
        """The next event that is watched, or None when there is none now. Raises `OSError`, among others."""

    def fault(self) -> int:
        """The number of the error that is pending, 0 for none."""

    def close(self) -> None: ...


class Source(Protocol):
    """Used by one thread only."""

    def open(self, buffer_bytes: int) -> Feed | Unavailable:
        """Raises `OSError`, among others, where trying again may help."""

    def devices(self) -> list[Device]: ...


class UdevSource:
    """Events of udev, through libudev; devices from sysfs.

    `stage` is "udev" (a device is announced when udev has set it up) or "kernel" (before that, and without udev).
    """

    def __init__(self, roots: HostRoots | None = None, *, run: Path = Path("/run/udev"), stage: str = "udev") -> None:
        self._roots = roots or HostRoots()
        self._run = run
        self._stage = stage
        self._context: Any = None

    def open(self, buffer_bytes: int) -> Feed | Unavailable:
        if self._stage == "udev" and not self._run.exists():
            return Unavailable(f"udev does not run here ({self._run} is not there)")
        try:
            import pyudev

            if self._context is None:
                self._context = pyudev.Context()  # looks for the library by starting ldconfig: once is enough
            monitor = pyudev.Monitor.from_netlink(self._context, source=self._stage)
        except ImportError as error:
            return Unavailable(f"libudev cannot be loaded: {error}")
        except OSError as error:
            if error.errno in _REFUSED:
                return Unavailable(f"no netlink socket is allowed here: {os.strerror(error.errno or 0)}")
            raise
        return _UdevFeed.connected(monitor, buffer_bytes)

    def devices(self) -> list[Device]:
        return list_devices(self._roots)


class _UdevFeed:
    def __init__(self, monitor: Any, sock: socket.socket) -> None:
        self._monitor = monitor
        self._socket = sock

    @classmethod
    def connected(cls, monitor: Any, buffer_bytes: int) -> _UdevFeed | Unavailable:
        for subsystem in WATCHED:
            monitor.filter_by(subsystem)  # in the kernel: other events do not even wake us
        monitor.start()
        sock = socket.socket(fileno=os.dup(monitor.fileno()))
        if not sock.getsockname()[1]:
            # libudev leaves the socket without a group where it finds no udev: it would be silent for ever.
            sock.close()
            return Unavailable("udev does not run here")
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < buffer_bytes:  # never made smaller
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        return cls(monitor, sock)

    def fileno(self) -> int:
        return self._socket.fileno()

    def fault(self) -> int:
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def receive(self) -> DeviceEvent | None:
        while True:
            try:
                device = self._monitor.poll(timeout=0)
            except OSError as error:
                # An error of the socket is raised without its number; as long as nobody takes it, for ever.
                pending = error.errno or self.fault()
                raise (OSError(pending, os.strerror(pending)) if pending else error) from error
            if device is None:
                return None
            event = _event(device)
            if event is not None:
                return event

    def close(self) -> None:
        self._socket.close()
        self._monitor = None  # libudev closes its own descriptor with the last reference


def _event(device: Any) -> DeviceEvent | None:
    subsystem, name = str(device.subsystem), str(device.sys_name)
    properties = {str(key): str(value) for key, value in device.properties.items()}
    action = str(device.action)
    if subsystem == "cpu":
        if action in ("online", "offline"):
            properties["ONLINE"] = "1" if action == "online" else "0"
        elif (online := device.attributes.get("online")) is not None:
            properties["ONLINE"] = online.decode("ascii", "replace").strip()
    if not is_watched(subsystem, name, properties):
        return None
    return DeviceEvent(
        action=action,
        subsystem=subsystem,
        name=name,
        path=str(device.device_path),
        properties=telling(properties),
    )
