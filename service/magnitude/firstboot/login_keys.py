"""`authorized_keys`, checked before it is the only way in. Pure; the format is sshd(8)'s."""

from __future__ import annotations

import base64
import binascii
import re

from magnitude.firstboot.parcel import Refused

# What OpenSSH accepts by default; DSA has been gone since 10.0.
_TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "ssh-rsa",
)
# OpenSSH refuses shorter ones (RequiredRSASize defaults to 1024; 2048 is what is still made anywhere).
_RSA_BITS = 2048
# Options in front of a key end at the first blank outside of quotes, in which `\"` is no quote.
_OPTION = r'[A-Za-z0-9-]+(?:="(?:[^"\\]|\\"|\\(?!"))*")?'
_OPTIONS = re.compile(rf"^{_OPTION}(?:,{_OPTION})*[ \t]+")


def parse_login_keys(text: str) -> str:
    """The keys as lines that sshd reads. Raises `Refused` unless every line is one: a file that is half right would
    let somebody in and leave somebody out, and nobody would know why."""
    if "PRIVATE KEY" in text:
        raise Refused(
            "It holds a private key, which must stay with its owner",
            hint="Put the file that ends in .pub there, and replace the key: it has been on this card",
        )
    if "BEGIN SSH2 PUBLIC KEY" in text:
        raise Refused(
            "It is in the format of RFC 4716 (PuTTY's)",
            hint="Convert it: ssh-keygen -i -f FILE, or copy the line that PuTTYgen shows for OpenSSH",
        )
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        _check(stripped, number)
        lines.append(stripped)
    if not lines:
        raise Refused("It holds no key", hint="Put the line of your .pub file there, for example ssh-ed25519 AAAA…")
    return "".join(f"{line}\n" for line in lines)


def _check(line: str, number: int) -> None:
    fields = _fields(line)
    if fields[0] not in _TYPES:
        fields = _fields(_OPTIONS.sub("", line, count=1))
    if fields[0] not in _TYPES:
        raise Refused(
            f"Line {number} names no type of key that is accepted",
            hint="One key a line, unbroken: ssh-ed25519 AAAA… name. Older types are not accepted any more",
        )
    parts = _parts(_decoded(fields[1] if len(fields) > 1 else ""))
    if len(parts) < 2 or parts[0] != fields[0].encode():
        raise Refused(f"The key in line {number} is cut off or damaged", hint="Copy the whole line again, unbroken")
    if fields[0] == "ssh-rsa" and (len(parts) < 3 or int.from_bytes(parts[2], "big").bit_length() < _RSA_BITS):
        raise Refused(
            f"The RSA key in line {number} has less than {_RSA_BITS} bits", hint="Make one: ssh-keygen -t ed25519"
        )


def _fields(text: str) -> list[str]:
    return re.split("[ \t]+", text, maxsplit=2)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _parts(blob: bytes) -> list[bytes]:
    """The strings of a key, each with its length in front (RFC 4253, 6.6); [] when it does not add up."""
    parts = []
    while blob:
        length = int.from_bytes(blob[:4], "big")
        if len(blob) < 4 or len(blob) - 4 < length:
            return []
        parts.append(blob[4 : 4 + length])
        blob = blob[4 + length :]
    return parts
