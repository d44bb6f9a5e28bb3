"""`server.listen`: the TCP address, parsed."""

from __future__ import annotations

import ipaddress

import msgspec

from magnitude.errors import ConfigError


class TcpAddress(msgspec.Struct, frozen=True, kw_only=True):
    """`host` is a name or an address without brackets; port 0 lets the kernel choose."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether nobody on the network can reach it. A name other than localhost can resolve to anything."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str) -> TcpAddress | None:
    """`host:port` or `[ipv6]:port`; None for "" (no TCP). Raises `ConfigError`."""
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise _unusable(text)
    if (":" in host) != bracketed:
        raise _unusable(text)
    return TcpAddress(host=host, port=int(port))


def _unusable(text: str) -> ConfigError:
    return ConfigError(
        f"server.listen is {text!r}, which is no host:port",
        hint='Write for example "127.0.0.1:11500", "[::1]:11500", or "" for no TCP',
        param="server.listen",
    )
