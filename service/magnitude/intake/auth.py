"""Who may ask for what.

Three kinds of routes. *Open* ones say whether the service lives and nothing else. *API* routes need a key as soon
as one is configured. *Admin* routes (metrics) have an authority of their own: the unix socket, whose file mode and
group are the permission, or a key marked `admin`. On loopback the names in Host and Origin are checked, so that a
web page cannot reach the service through a name that it lets point to 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from enum import Enum
from urllib.parse import urlsplit

import msgspec

from magnitude.config import ServerSettings
from magnitude.errors import Forbidden, Unauthorized

_OPEN_PATHS = frozenset({"/healthz", "/readyz", "/version", "/openapi.json", "/v2/health/live", "/v2/health/ready"})
_ADMIN_PATHS = (
    *("/metrics", "/v1/magnitude/state", "/v1/magnitude/records"),
    *("/v1/magnitude/timeline", "/v1/magnitude/reload", "/v1/magnitude/recycle", "/v1/magnitude/strategy"),
)
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class Access(Enum):
    OPEN = "open"
    API = "api"
    ADMIN = "admin"


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request came in: over the unix socket, or at which of our own addresses."""

    unix: bool
    local_address: str = ""

    @property
    def loopback(self) -> bool:
        """Whether the request came in at a loopback address. An address that cannot be read counts as one."""
        try:
            return is_loopback(self.local_address)
        except ValueError:
            return True


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks: the name of the key, or "" for a local client without one."""

    name: str = ""
    admin: bool = False


def is_loopback(address: str) -> bool:
    """Whether nobody on the network can reach `address`. Raises `ValueError` for one that is none."""
    parsed = ipaddress.ip_address(address.split("%", maxsplit=1)[0])
    # A socket for both families shows IPv4 peers as ::ffff:127.0.0.1.
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def access_of(path: str) -> Access:
    """What the route at `path` demands. Routes nobody thought of demand a key."""
    if path in _OPEN_PATHS:
        return Access.OPEN
    if any(path == p or path.startswith(f"{p}/") for p in _ADMIN_PATHS):
        return Access.ADMIN
    return Access.API


def authorize(peer: Peer, path: str, headers: Mapping[str, str], server: ServerSettings) -> Principal:
    """Who asks, if they may. Raises `Unauthorized` or `Forbidden`."""
    if not peer.unix and peer.loopback:
        _check_names(headers, server)
    access = access_of(path)
    principal = _principal(headers.get("authorization", ""), server)
    if access is Access.OPEN:
        return principal or Principal()
    if access is Access.ADMIN:
        if peer.unix or (principal is not None and principal.admin):
            return principal or Principal(admin=True)
        if principal is None:
            raise Unauthorized(
                "This route needs an admin key",
                hint="Ask over the unix socket, or send a key that has `admin: true` in server.api_keys.",
                code="admin_key_missing",
            )
        raise Forbidden(
            "This key may not use admin routes",
            hint="Ask over the unix socket, or use a key that has `admin: true` in server.api_keys.",
        )
    if principal is not None or peer.unix or not server.api_keys:
        return principal or Principal()
    raise Unauthorized(
        "An API key is needed",
        hint="Send it as `Authorization: Bearer KEY`; keys are configured under server.api_keys.",
        code="api_key_missing",
    )


def _principal(authorization: str, server: ServerSettings) -> Principal | None:
    """The key's owner; None without a key. Without configured keys any key is ignored: clients must send one."""
    scheme, _, key = authorization.strip().partition(" ")
    key = key.strip()
    if not server.api_keys or not authorization.strip():
        return None
    if scheme.lower() != "bearer" or not key:
        raise Unauthorized("The Authorization header cannot be read", hint="Send it as `Authorization: Bearer KEY`.")
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    found: Principal | None = None
    for known in server.api_keys:
        # All are compared, always: how long it takes must not tell which one came close.
        if hmac.compare_digest(known.sha256, digest):
            found = Principal(name=known.name, admin=known.admin)
    if found is None:
        raise Unauthorized(
            "This API key is not known",
            hint="Check the key; `magnitude config hash-key` shows the hash to configure.",
        )
    return found


def _check_names(headers: Mapping[str, str], server: ServerSettings) -> None:
    allowed = _LOOPBACK_NAMES | {name.lower().strip("[]") for name in server.allowed_hosts}
    host = _host_name(headers.get("host", ""))
    if host not in allowed:
        raise Forbidden(
            f"The host name {host or '(none)'!r} is not one of this service",
            hint="Use localhost or 127.0.0.1, or add the name to server.allowed_hosts.",
            param="Host",
            code="host_not_allowed",
        )
    origin = headers.get("origin")
    if origin is None:
        return
    if (_origin_name(origin) or "") not in allowed:
        raise Forbidden(
            "Web pages of another origin may not use this service",
            hint="Add the page's host name to server.allowed_hosts if it is yours.",
            param="Origin",
            code="origin_not_allowed",
        )


def _host_name(value: str) -> str:
    return _origin_name(f"http://{value.strip()}") or ""


def _origin_name(origin: str) -> str | None:
    try:
        parts = urlsplit(origin.strip())
        return parts.hostname if parts.scheme in ("http", "https") and not parts.username else None
    except ValueError:
        return None
