"""Announces devices as udev's daemon does: the message of libudev's monitors, by netlink, to whoever listens."""

from __future__ import annotations

import socket
import struct

_NETLINK_KOBJECT_UEVENT = 15
_UDEV_GROUP = 2  # 1 is the kernel's own
_MAGIC = 0xFEEDCAFE
_HEADER_BYTES = 40


def announce(action: str, path: str, subsystem: str, **properties: str) -> None:
    """Needs CAP_NET_ADMIN; libudev believes root only."""
    told = {"ACTION": action, "DEVPATH": path, "SUBSYSTEM": subsystem, "SEQNUM": "1", **properties}
    body = b"".join(f"{name}={value}".encode() + b"\0" for name, value in told.items())
    hashes = (_hash(subsystem), _hash(properties.get("DEVTYPE", "")), 0, 0)  # the kernel filters by them
    header = b"libudev\0" + struct.pack(">I", _MAGIC)
    header += struct.pack("=III", _HEADER_BYTES, _HEADER_BYTES, len(body)) + struct.pack(">IIII", *hashes)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_KOBJECT_UEVENT) as sock:
        sock.sendto(header + body, (0, _UDEV_GROUP))


def _hash(text: str) -> int:
    """MurmurHash2 (Appleby) with seed 0; 0 for nothing."""
    data, factor = text.encode(), 0x5BD1E995
    value = len(data)
    whole = len(data) // 4 * 4
    for (part,) in struct.iter_unpack("<I", data[:whole]):
        mixed = part * factor & 0xFFFFFFFF
        mixed = (mixed ^ mixed >> 24) * factor & 0xFFFFFFFF
        value = value * factor & 0xFFFFFFFF ^ mixed
    if rest := data[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * factor & 0xFFFFFFFF
    value = (value ^ value >> 13) * factor & 0xFFFFFFFF
    return value ^ value >> 15 if data else 0
