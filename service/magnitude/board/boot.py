"""Moments that can be told apart after a restart, on boards whose wall clock is wrong at first.

A board without a battery for its clock starts in 1970 and jumps to the present when the network is there. The
monotonic clock is always right, but starts anew with each boot: so a moment that is kept carries both, and the id of
the boot that it belongs to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from magnitude.board.roots import HostRoots, read_text

# No release is older: 2026-01-01. Files of an image often carry the epoch as their time, so they cannot tell.
EARLIEST_S = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
# What stands for a boot whose id cannot be read. It is the same boot as no other, itself included.
UNKNOWN_BOOT = ""


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """A moment. `at_s`: by the monotonic clock of the boot `boot_id`; `wall_s`: seconds since 1970, for people."""

    wall_s: float
    at_s: float
    boot_id: str


def read_boot_id(roots: HostRoots | None = None) -> str:
    """The kernel's id of this boot (random(4)), or `UNKNOWN_BOOT`."""
    return read_text((roots or HostRoots()).proc / "sys/kernel/random/boot_id") or UNKNOWN_BOOT


def same_boot(one: str, other: str) -> bool:
    return one == other != UNKNOWN_BOOT


def age_s(then: Stamp, now: Stamp) -> float | None:
    """How long ago `then` was, never negative; None when no clock can tell.

    Within a boot the monotonic clock tells. Over boots the wall clock does, if it could be right at both moments:
    one before the first release is not set yet, and one in the future was wrong then or is wrong now.
    """
    if same_boot(then.boot_id, now.boot_id):
        return max(0.0, now.at_s - then.at_s)
    if EARLIEST_S <= then.wall_s <= now.wall_s:
        return now.wall_s - then.wall_s
    return None


class Clocks:
    """Both clocks and the id of this boot."""

    def __init__(
        self,
        boot_id: str | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.boot_id = read_boot_id() if boot_id is None else boot_id
        self.monotonic = monotonic
        self.wall = wall

    def now(self) -> Stamp:
        return Stamp(wall_s=self.wall(), at_s=self.monotonic(), boot_id=self.boot_id)
