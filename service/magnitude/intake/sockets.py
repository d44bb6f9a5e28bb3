"""The listening sockets: those that systemd hands over, or our own.

What kind of socket an inherited one is, the socket itself says. Inherited sockets are neither bound nor removed: they
belong to systemd, and outlive the service.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import logging
import os
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from magnitude.config import ServerSettings
from magnitude.config.address import parse_listen
from magnitude.errors import ConfigError
from magnitude.intake.auth import is_loopback
from magnitude.supervise.inherited import InheritedFd

log = logging.getLogger("magnitude.intake")

_BACKLOG = 256  # connections that may wait while the loop is busy for a moment
_PROBE_S = 1.0  # a server on the same machine answers a connect at once


class ListeningSocket(msgspec.Struct, frozen=True, kw_only=True):
    """A socket that listens. `close` also removes the file of a unix socket that we made."""

    sock: socket.socket
    name: str
    inherited: bool
    path: str | None = None
    inode: int | None = None

    @property
    def address(self) -> str:
        """How to reach it, for people and logs."""
        if self.sock.family == socket.AF_UNIX:
            return f"unix:{self.sock.getsockname()}"
        host, port = self.sock.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def close(self) -> None:
        self.sock.close()
        if self.path is None:
            return
        # Another service may have put its own socket there in the meantime.
        with contextlib.suppress(OSError):
            if Path(self.path).stat().st_ino == self.inode:
                Path(self.path).unlink()


def open_sockets(
    server: ServerSettings, inherited: Sequence[InheritedFd], *, run_folder: Path
) -> list[ListeningSocket]:
    """Sockets to serve on: those among `inherited` if there are any, otherwise bound as configured.

    Descriptors that are no sockets are left alone. Raises `ConfigError` when an address cannot be used, or when one
    beyond loopback would be open to all.
    """
    sockets = _adopted(inherited)
    try:
        if sockets:
            _tell_unbound(server, sockets)
        else:
            _bind(server, run_folder, sockets)
        if not sockets:
            raise ConfigError(
                "There is nothing to listen on",
                hint="Set server.listen or server.unix_socket.",
                param="server.listen",
            )
        refuse_open_doors(sockets, server)
    except BaseException:
        for listening in sockets:
            listening.close()
        raise
    return sockets


def refuse_open_doors(sockets: Sequence[ListeningSocket], server: ServerSettings) -> None:
    """Raises `ConfigError` when one of `sockets` would let everybody on the network in under these settings."""
    for listening in sockets:
        _refuse_open_door(listening, server)


def _adopted(inherited: Sequence[InheritedFd]) -> list[ListeningSocket]:
    found: list[ListeningSocket] = []
    for given in inherited:
        if not given.is_socket:
            continue
        # Family, type and protocol come from the socket itself.
        sock = socket.socket(fileno=given.fd)
        if sock.type != socket.SOCK_STREAM or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            fields = {"fd": given.fd, "name": given.name}
            log.warning("inherited socket does not listen for streams", extra={"fields": fields})
            sock.detach()
            continue
        sock.setblocking(False)
        found.append(ListeningSocket(sock=sock, name=given.name, inherited=True))
    return found


def _tell_unbound(server: ServerSettings, sockets: Sequence[ListeningSocket]) -> None:
    """Say once which configured addresses do not count, because systemd's sockets are used instead."""
    wanted = parse_listen(server.listen)
    configured = [f"http://{wanted}"] if wanted is not None else []
    configured += [f"unix:{server.unix_socket}"] if server.unix_socket else []
    served = [listening.address for listening in sockets]
    unbound = [address for address in configured if address.replace("//localhost:", "//127.0.0.1:") not in served]
    if unbound:
        fields = {"not_bound": ", ".join(unbound), "served": ", ".join(served)}
        log.info("the service manager's sockets are used, not the configured addresses", extra={"fields": fields})


def _bind(server: ServerSettings, run_folder: Path, sockets: list[ListeningSocket]) -> None:
    path = str(run_folder / "magnitude.sock") if server.unix_socket is None else server.unix_socket
    if path:
        sockets.append(_bind_unix(Path(path), server))
    if server.listen:
        sockets.extend(_bind_tcp(server))


def _bind_unix(path: Path, server: ServerSettings) -> ListeningSocket:
    _make_folder(path.parent)
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Nobody may connect before mode and group are right.
        before = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        if server.unix_socket_group is not None:
            os.chown(path, -1, _group_id(server.unix_socket_group))
        path.chmod(int(server.unix_socket_mode, 8))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"The unix socket {path} cannot be made: {error.strerror or error}",
            hint="Check that its folder exists and may be written, and that the path has at most 107 bytes.",
            param="server.unix_socket",
        ) from error
    return ListeningSocket(sock=sock, name="unix", inherited=False, path=str(path), inode=path.stat().st_ino)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The folder {folder} for the unix socket cannot be made: {error.strerror or error}",
            hint="Make it for this user, set MAGNITUDE_HOME to a folder of your own, or set server.unix_socket.",
            param="server.unix_socket",
        ) from error


def _remove_stale(path: Path) -> None:
    """Remove a socket file that a dead service left behind; leave everything else alone."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(
                f"{path} exists and is no socket", hint="Choose another path.", param="server.unix_socket"
            )
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass  # it is there but slow, or not ours to ask: somebody owns it
    raise ConfigError(
        f"Another service answers at {path}",
        hint="Stop it first, or choose another server.unix_socket.",
        param="server.unix_socket",
    )


def _group_id(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(
            f"There is no group {name!r}", hint="Create it or change the setting.", param="server.unix_socket_group"
        ) from None


def _bind_tcp(server: ServerSettings) -> list[ListeningSocket]:
    wanted = parse_listen(server.listen)
    assert wanted is not None, "called for a configured address only"
    try:
        infos = socket.getaddrinfo(wanted.host, wanted.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise _tcp_error(server.listen, error) from error
    bound: list[ListeningSocket] = []
    for family, kind, protocol, _, address in infos:
        try:
            bound.append(_bind_one(family, kind, protocol, address))
        except OSError as error:
            # A machine without IPv6 still resolves localhost to ::1.
            if len(infos) > 1 and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                continue
            for listening in bound:
                listening.close()
            raise _tcp_error(server.listen, error) from error
    return bound


def _bind_one(family: int, kind: int, protocol: int, address: Any) -> ListeningSocket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return ListeningSocket(sock=sock, name="tcp", inherited=False)


def _tcp_error(listen: str, error: OSError) -> ConfigError:
    hint = "Choose another server.listen."
    if error.errno == errno.EADDRINUSE:
        hint = "Another service uses the port; stop it, or choose another server.listen."
    return ConfigError(f"Cannot listen on {listen}: {error.strerror or error}", hint=hint, param="server.listen")


def _refuse_open_door(listening: ListeningSocket, server: ServerSettings) -> None:
    """Beyond loopback a key is needed; what an inherited socket is bound to, the socket says."""
    family = listening.sock.family
    if family == socket.AF_UNIX:
        return
    if family not in (socket.AF_INET, socket.AF_INET6):
        raise ConfigError(
            f"The inherited socket {listening.name} is of the family {family.name}, which is not served",
            hint="Use ListenStream= with a path or an IP address in the socket unit.",
            param="server.listen",
        )
    if not server.api_keys and not is_loopback(str(listening.sock.getsockname()[0])):
        raise ConfigError(
            f"Listening on {listening.address} would let everybody in: no API key is configured",
            hint="Add a key under server.api_keys, or listen on 127.0.0.1.",
            param="server.api_keys",
        )
