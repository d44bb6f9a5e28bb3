"""`server:` who may talk to the service, where, and how much at once."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key is kept as its SHA-256 only (`magnitude config hash-key` makes one).

    Keys are long random strings, so a fast hash is enough; a password would need a slow one.
    """

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    admin: bool = False


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # `host:port`, or "" for no TCP at all.
    listen: str = "127.0.0.1:11500"
    # Path of the unix socket, or "" for none. Unset: `magnitude.sock` in the run folder.
    unix_socket: str | None = None
    unix_socket_mode: Annotated[str, Meta(pattern="^0[0-7]{3}$")] = "0660"
    unix_socket_group: str | None = None
    api_keys: list[ApiKey] = []
    # Further names under which browsers may reach the service (Host and Origin are checked on loopback).
    allowed_hosts: list[str] = []
    max_request_bytes: Annotated[int, Meta(ge=1024, le=1 << 30)] = 4 * 1024 * 1024
    max_messages: Annotated[int, Meta(ge=1, le=100_000)] = 512
    max_connections: Annotated[int, Meta(ge=1, le=65_536)] = 128
    # Requests that may wait for a slot; the next one gets 429.
    max_queue: Annotated[int, Meta(ge=0, le=65_536)] = 32
    # A client that needs longer than this to send its request or to take our bytes is cut off.
    client_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0
