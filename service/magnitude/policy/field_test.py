"""Which devices of a fleet run the strategy loop in a field test: drawn once by each device for itself, for good.

No list of devices is needed, and the same device is on the same side after every restart and update. Another test
draws anew, whatever the first one drew. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Literal

import msgspec

Arm = Literal["on", "off"]

# Our application's id for `app_specific`: drawn once, and never to be changed.
APPLICATION_ID = bytes.fromhex("d0908df097f84756ab10ca65354401cf")


class FieldTest(msgspec.Struct, frozen=True, kw_only=True):
    """A device's part in the field test `name`. `arm` says whether its strategy loop runs; "": it takes no part, and
    `reason` says why."""

    name: str = ""
    share: float = 0.0
    arm: Arm | Literal[""] = ""
    reason: str = ""


def app_specific(machine_id: str) -> str:
    """The device's id as this application may use it, made of systemd's `machine_id` (32 hexadecimal digits): that
    one must leave no device (machine-id(5)), and cannot be computed back from this one.

    As sd_id128_get_machine_app_specific(3) does it: HMAC-SHA256 of the application's id under the machine's, cut to
    128 bits, marked as a UUID of version 4. Raises `ValueError` for what is no machine id.
    """
    key = bytes.fromhex(machine_id)
    if len(key) != 16:
        raise ValueError(f"a machine id has 32 hexadecimal digits, not {len(machine_id)}")
    digest = bytearray(hmac.digest(key, APPLICATION_ID, "sha256")[:16])
    digest[6] = digest[6] & 0x0F | 0x40
    digest[8] = digest[8] & 0x3F | 0x80
    return digest.hex()


def arm_of(device_id: str, test: str, share: float) -> Arm:
    """On which side of `test` a device is: of many, `share` (0..1) are "on". A larger share moves devices to "on",
    none back."""
    digest = hmac.digest(device_id.encode(), test.encode(), hashlib.sha256)
    return "on" if int.from_bytes(digest[:8], "big") < share * 2**64 else "off"


def part_in(test: str, share: float, machine_id: str | None) -> FieldTest:
    """What this device does in `test` ("": there is none). Without a machine id (None) it takes no part: it could be
    on another side after each start."""
    if not test:
        return FieldTest()
    try:
        device_id = app_specific(machine_id or "")
    except ValueError:
        return FieldTest(name=test, share=share, reason="this machine has no id (/etc/machine-id)")
    return FieldTest(name=test, share=share, arm=arm_of(device_id, test, share))
