"""Files that people leave on the boot partition: which names count, and how their bytes become text.

The partition is FAT and is written from Windows, macOS and phones, so names come in any case and with endings that an
editor added, and texts with byte order marks and other ends of lines.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from magnitude.errors import MagnitudeError

Kind = Literal["config", "wifi", "connection", "login keys"]

# What is left behind: NAME.taken for what was taken over, NAME.rejected.txt for why something was not.
TAKEN = ".taken"
REJECTED = ".rejected.txt"

# Far above what such a file needs, far below what a board notices. Our settings reader has the same limit.
LIMIT_BYTES: dict[Kind, int] = {
    "config": 1 << 20,
    "wifi": 16 << 10,
    "connection": 64 << 10,
    "login keys": 256 << 10,
}
# A passphrase is in these, so nothing of them is kept on the boot partition.
SECRET: frozenset[Kind] = frozenset({"wifi", "connection"})

_NAMES: dict[str, Kind] = {
    "magnitude.yaml": "config",
    "magnitude.yml": "config",
    "wifi.yaml": "wifi",
    "wifi.yml": "wifi",
    "authorized_keys": "login keys",
}
_CONNECTION = ".nmconnection"


class Refused(MagnitudeError):
    """A file is not taken over. Neither message nor hint ever holds a value from the file, so both may be logged."""

    code = "first_boot_refused"
    permanent = True


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A file in the folder, as read. `unreadable` says why its bytes are not there, "" when they are."""

    name: str
    data: bytes = b""
    unreadable: str = ""


def kind_of(name: str) -> Kind | None:
    """What the file `name` is for; None for one that is none of ours."""
    plain = _plain(name)
    return "connection" if plain.endswith(_CONNECTION) and len(plain) > len(_CONNECTION) else _NAMES.get(plain)


def kind_of_taken(name: str) -> Kind | None:
    """What the file `name` was before it was taken over; None for one that was not."""
    return kind_of(name[: -len(TAKEN)]) if name.lower().endswith(TAKEN) else None


def text_of(found: Found, kind: Kind) -> str:
    """The file's text, with `\\n` as the end of each line. Raises `Refused`."""
    if found.unreadable:
        raise Refused(f"It is {found.unreadable}", hint="Put an ordinary file there")
    limit = LIMIT_BYTES[kind]
    if len(found.data) > limit:
        raise Refused(f"It is larger than {limit} bytes", hint="It is most likely another file under this name")
    if not found.data.strip(b"\0"):
        # What a card shows after it was pulled out before the computer had written.
        raise Refused("It is empty", hint="Copy it again, and eject the card before you pull it out")
    # Editors on Windows offer UTF-16 as "Unicode"; it is told by its mark.
    encoding = "utf-16" if found.data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = found.data.decode(encoding)
    except UnicodeDecodeError:
        raise Refused("It is not UTF-8 text", hint="Save it as UTF-8") from None
    if "\0" in text:
        raise Refused("It has zero bytes in it", hint="Copy it again, and eject the card before you pull it out")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def connection_name(name: str) -> str:
    """The name under which a connection is kept: what NetworkManager and a shell take without quotes."""
    stem = _plain(name)[: -len(_CONNECTION)]
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in stem)[:64] + _CONNECTION


def _plain(name: str) -> str:
    """In lower case, and without the `.txt` that an editor added and a file manager hides."""
    return name.lower().removesuffix(".txt")
