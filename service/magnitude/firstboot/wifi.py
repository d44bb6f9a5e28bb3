"""Access to a wireless network: from `wifi.yaml`, or a NetworkManager keyfile as it is. Pure."""

from __future__ import annotations

import configparser
import re

import msgspec

from magnitude.config.document import MapNode, Scalar, parse
from magnitude.errors import ConfigError
from magnitude.firstboot.parcel import Refused

_KEYS = ("ssid", "psk", "country", "hidden", "open")
# IEEE 802.11: a network's name has 1 to 32 bytes.
_SSID_BYTES = 32
# IEEE 802.11i: a passphrase has 8 to 63 printable ASCII characters; 64 hexadecimal digits are the key itself.
_PASSPHRASE = re.compile(r"[ -~]{8,63}")
_RAW_KEY = re.compile(r"[0-9A-Fa-f]{64}")
_COUNTRY = re.compile(r"[A-Za-z]{2}")
# What a board may be given this way. VPN plugins run programs of their own; those are for an admin on the board.
_CONNECTION_TYPES = frozenset({"wifi", "802-11-wireless", "ethernet", "802-3-ethernet"})


class Wifi(msgspec.Struct, frozen=True, kw_only=True):
    """`psk` is the passphrase, "" for an open network. `country`: two letters (ISO 3166), "" when not given."""

    ssid: str
    psk: str = ""
    country: str = ""
    hidden: bool = False

    def __repr__(self) -> str:
        return f"Wifi(ssid={self.ssid!r}, country={self.country!r})"  # no passphrase in a traceback


def parse_wifi(text: str) -> Wifi:
    """What `wifi.yaml` says. Raises `Refused`, never with a value from the file."""
    try:
        root = parse(text, "wifi.yaml")
    except ConfigError as error:
        line = re.search(r"line (\d+)", error.param or "")
        place = f" (line {line[1]})" if line else ""
        raise Refused(
            f"It is not valid YAML{place}", hint="Write `ssid: NAME` and `psk: PASSPHRASE`, a line each"
        ) from None
    unknown = sorted(set(root.items) - set(_KEYS))
    if unknown:
        # Not the key itself: `psk:PASSPHRASE` without a blank would be one.
        raise Refused(f"{len(unknown)} of its keys are unknown", hint=f"Known keys: {', '.join(_KEYS)}")
    ssid, psk, country = (_text(root, key) for key in ("ssid", "psk", "country"))
    hidden, is_open = (_flag(root, key) for key in ("hidden", "open"))
    if not 1 <= len(ssid.encode()) <= _SSID_BYTES:
        raise Refused("ssid is missing or longer than 32 bytes", hint="Write `ssid: NAME` with the network's name")
    if is_open and psk:
        raise Refused("It has a psk, and says that the network is open", hint="Leave one of the two out")
    if not is_open and not (_PASSPHRASE.fullmatch(psk) or _RAW_KEY.fullmatch(psk)):
        raise Refused(
            "psk is not a passphrase of 8 to 63 ASCII characters",
            hint="Put it in quotes; for a network without one write `open: true`",
        )
    if country and not _COUNTRY.fullmatch(country):
        raise Refused("country is not two letters", hint="Write for example `country: DE`")
    return Wifi(ssid=ssid, psk=psk, country=country.upper(), hidden=hidden)


def keyfile_of(wifi: Wifi) -> str:
    """The NetworkManager profile of `wifi` (nm-settings-keyfile(5)).

    The name is written as numbers: as text, a name such as `1;2` would be taken for bytes.
    """
    lines = [
        "[connection]",
        "id=magnitude-wifi",
        "type=wifi",
        "autoconnect=true",
        "",
        "[wifi]",
        "mode=infrastructure",
    ]
    lines.append("ssid=" + "".join(f"{byte};" for byte in wifi.ssid.encode()))
    if wifi.hidden:
        lines.append("hidden=true")
    if wifi.psk:
        # A network that speaks WPA3 too is joined by the same profile.
        lines += ["", "[wifi-security]", "key-mgmt=wpa-psk", f"psk={_escaped(wifi.psk)}"]
    lines += ["", "[ipv4]", "method=auto", "", "[ipv6]", "method=auto", ""]
    return "\n".join(lines)


def check_connection(text: str) -> None:
    """Raises `Refused` unless `text` is a keyfile of a wireless or wired connection."""
    parser = configparser.RawConfigParser(delimiters="=", comment_prefixes="#", empty_lines_in_values=False)
    try:
        parser.read_string(text)
    except (configparser.Error, ValueError):
        raise Refused("It is not a NetworkManager keyfile", hint="Copy one from a system that connects") from None
    kind = parser.get("connection", "type", fallback="")
    if kind not in _CONNECTION_TYPES:
        raise Refused(
            "It has no [connection] with a type that is taken over",
            hint="`type=wifi` and `type=ethernet` are; set others up on the device",
        )
    if "wireless" in kind or kind == "wifi":
        names = (parser.get(section, "ssid", fallback="") for section in ("wifi", "802-11-wireless"))
        if not any(names):
            raise Refused("It names no network", hint="Write `ssid=NAME` below [wifi]")


def _text(root: MapNode, key: str) -> str:
    """As written: a passphrase of digits is a passphrase."""
    node = root.items.get(key)
    if node is None:
        return ""
    if not isinstance(node, Scalar):
        raise Refused(f"{key} is a list or a map", hint=f"Write `{key}: TEXT`")
    return "" if node.kind == "null" else node.written


def _flag(root: MapNode, key: str) -> bool:
    node = root.items.get(key)
    if node is None:
        return False
    if not isinstance(node, Scalar) or not isinstance(node.value, bool):
        raise Refused(f"{key} is neither true nor false", hint=f"Write `{key}: true`, or leave it out")
    return node.value


def _escaped(text: str) -> str:
    """As GLib's key files want it: blanks at the ends would be cut off, a backslash begins an escape."""
    return text.replace("\\", "\\\\").replace(" ", "\\s")
