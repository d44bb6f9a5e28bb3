"""`server:` who may talk to the service, where, and how much at once."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key is kept as its SHA-256 only (`magnitude config hash-key` makes one).

    Keys are long random strings, so a fast hash is enough; a password would need a slow one.
    """

    name: Annotated[
        str, Meta(min_length=1, max_length=64, description="Who uses the key; shown in logs and accounts.")
    ]
    sha256: Annotated[
        str, Meta(pattern="^[0-9a-f]{64}$", description="SHA-256 of the key, made by `magnitude config hash-key`.")
    ]
    admin: Annotated[bool, Meta(description="Whether the key may also use the admin and metrics routes.")] = False


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    listen: Annotated[
        str,
        Meta(
            description='TCP address as host:port, or "" for no TCP at all. An address that others on the network '
            "can reach needs api_keys."
        ),
    ] = "127.0.0.1:11500"
    unix_socket: Annotated[
        str | None,
        Meta(description='Path of the unix socket, or "" for none. Unset: magnitude.sock in the run folder.'),
    ] = None
    unix_socket_mode: Annotated[
        str, Meta(pattern="^0[0-7]{3}$", description="File mode of the unix socket, in octal.")
    ] = "0660"
    unix_socket_group: Annotated[
        str | None, Meta(description="Group of the unix socket. Unset: the service's own group.")
    ] = None
    api_keys: Annotated[
        list[ApiKey], Meta(description="Who may use the API over TCP. Empty: everybody who can reach the address.")
    ] = []
    allowed_hosts: Annotated[
        list[str],
        Meta(
            description="Further names under which browsers may reach the service: Host and Origin are checked, "
            "because a page in a browser could otherwise talk to a service on loopback."
        ),
    ] = []
    max_request_bytes: Annotated[
        int, Meta(ge=1024, le=1 << 30, description="Largest request body, as a number of bytes or for example 4 MiB.")
    ] = 4 * 1024 * 1024
    max_messages: Annotated[int, Meta(ge=1, le=100_000, description="Most messages of one chat request.")] = 512
    max_connections: Annotated[int, Meta(ge=1, le=65_536, description="Most connections open at once.")] = 128
    max_queue: Annotated[
        int, Meta(ge=0, le=65_536, description="Requests that may wait for a slot; the next one gets 429.")
    ] = 32
    client_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="A client that needs longer to send its request or to take our bytes is cut off.",
        ),
    ] = 30.0
