"""`server.listen` on an image, where a socket unit holds the address and nobody can edit units. Pure.

On other machines the socket unit wins over the configuration and is changed by `systemctl edit`. The root of an image
cannot be written, and `magnitude.yaml` on the boot partition is all that its owner has: so what it says is made a
drop-in of the socket unit, below /run, at each boot.
"""

from __future__ import annotations

import ipaddress

import msgspec

from magnitude.config.address import TcpAddress, parse_listen
from magnitude.config.server import ServerSettings
from magnitude.errors import ConfigError

DROP_IN = "magnitude.socket.d/60-listen.conf"
UNIX_SOCKET = "/run/magnitude/magnitude.sock"  # magnitude.socket's, which an empty list takes away with the others
# As systemd/optional/lan.conf: private networks, whatever the board is connected to.
_PRIVATE = "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 link-local fc00::/7"


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """The drop-in's `text`, "" for none; `notice` says why the configuration's address is not used."""

    text: str = ""
    notice: str = ""


def opening(server: ServerSettings, shipped: str = ServerSettings().listen) -> Opening:
    """What the socket unit, which listens on `shipped`, has to be told for `server`."""
    if server.listen == shipped:
        return Opening()
    try:
        address = parse_listen(server.listen)
    except ConfigError as error:
        return Opening(notice=error.message)
    if address is None:
        return Opening(text=_text([]))
    if not address.is_loopback and not server.api_keys:
        return Opening(notice=f"server.listen is {server.listen}, but without server.api_keys nobody is let in there")
    numbers = _numbers(address)
    if not numbers or address.port == 0:
        return Opening(notice=f"server.listen is {server.listen}, and a socket needs an IP address and a port")
    opened = ["IPAddressAllow=" + _PRIVATE] if not address.is_loopback else []
    # An address that the network has not given yet is listened on all the same.
    return Opening(text=_text([f"ListenStream={numbers}", "FreeBind=yes", *opened]))


def _numbers(address: TcpAddress) -> str:
    """As a socket unit wants it; "" for a name."""
    host = "127.0.0.1" if address.host == "localhost" else address.host
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return ""
    return str(msgspec.structs.replace(address, host=host))


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in ["[Socket]", "ListenStream=", f"ListenStream={UNIX_SOCKET}", *lines])
