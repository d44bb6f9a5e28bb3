"""Public keys that may log in, read as sshd(8) reads `authorized_keys`: comments, several keys, options in front.

The board takes a file of keys as a whole or not at all (service/magnitude/firstboot/login_keys.py). What it would
refuse is refused here already, while somebody sits in front of it.
"""

from __future__ import annotations

import base64
import binascii
import re

# What sshd accepts by default and the board takes.
TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "ssh-rsa",
)
# The board takes no shorter ones.
_RSA_BITS = 2048
# Options in front of a key end at the first blank outside of quotes, in which `\"` is no quote.
_OPTION = r'[A-Za-z0-9-]+(?:="(?:[^"\\]|\\"|\\(?!"))*")?'
_OPTIONS = re.compile(rf"^{_OPTION}(?:,{_OPTION})*[ \t]+")


def key_lines(text: str) -> list[str]:
    """The lines of `text` that are keys, without blanks around them. Raises `ValueError`: which line is none, and
    why."""
    found = []
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            if wrong := _wrong_with(stripped):
                raise ValueError(f"line {number} {wrong}")
            found.append(stripped)
    return found


def _wrong_with(line: str) -> str:
    """Why `line` is no key; "" when it is one."""
    words = _words(line)
    if words[0] not in TYPES:
        words = _words(_OPTIONS.sub("", line, count=1))
    if words[0] not in TYPES:
        return "is no public key of a kind that the board takes"
    parts = _parts(_decoded(words[1] if len(words) > 1 else ""))
    if len(parts) < 2 or parts[0] != words[0].encode():
        return "is cut off or damaged"
    if words[0] == "ssh-rsa" and (len(parts) < 3 or int.from_bytes(parts[2], "big").bit_length() < _RSA_BITS):
        return f"is an RSA key of less than {_RSA_BITS} bits"
    return ""


def _words(text: str) -> list[str]:
    return re.split("[ \t]+", text, maxsplit=2)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _parts(blob: bytes) -> list[bytes]:
    """The strings of a key, each with its length in front (RFC 4253, 6.6); none when it does not add up."""
    parts = []
    while blob:
        length = int.from_bytes(blob[:4], "big")
        if len(blob) < 4 + length:
            return []
        parts.append(blob[4 : 4 + length])
        blob = blob[4 + length :]
    return parts
