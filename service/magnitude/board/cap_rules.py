"""What to do about one policy's upper clock limit: the pure part of `clock_caps`.

What `scaling_max_freq` reads is the lowest of all limits in force: the one that was written there, and those that the
kernel adds for heat. Who wrote it is not told, so it is judged by the value.
"""

from __future__ import annotations

from typing import Literal

import msgspec

# "gone": no such policy. "unreadable": its limit cannot be read. "no_record": what was there before could not be
# noted, so it could not be put back. "not_ours": somebody else has set the limit, and keeps it. "kernel_limit": the
# kernel lowers the clock for heat, so what it would be without is not known. The others are what the kernel answered.
RefusalKind = Literal[
    "permission",
    "read_only",
    "invalid",
    "busy",
    "no_space",
    "gone",
    "unreadable",
    "no_record",
    "not_ours",
    "kernel_limit",
    "failed",
]
# "ours": the limit is what we wrote. "kernel": a lower one is in force for heat, and ours lies beneath. "reset": the
# kernel began anew, as when a driver is loaded again. "other": somebody else has set it.
Whose = Literal["ours", "kernel", "reset", "other"]


class ClockRange(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy's hardware can do; None and empty where it is not told. `opps_khz` ascend."""

    min_khz: int | None = None
    max_khz: int | None = None
    opps_khz: tuple[int, ...] = ()

    def clamped(self, khz: int) -> int:
        """`khz`, or the nearest limit of the hardware."""
        if self.max_khz is not None:
            khz = min(khz, self.max_khz)
        return khz if self.min_khz is None else max(khz, self.min_khz)

    def fitted(self, khz: int) -> int:
        """The highest clock that exists and is not above `khz`, else the lowest that exists. The kernel rounds in
        the same direction, so what is read back is what was written."""
        khz = self.clamped(khz)
        opps = [opp for opp in self.opps_khz if opp == self.clamped(opp)]
        if not opps:
            return khz
        return max((opp for opp in opps if opp <= khz), default=opps[0])


class CapEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A policy whose limit we have lowered. `original_khz` was in force before. `ours_khz` are the values that mean
    us: what was written last, what became of it, and, while something is being written, what was before that."""

    original_khz: int
    ours_khz: tuple[int, ...] = ()


class Leave(msgspec.Struct, frozen=True):
    """The limit is right. `forget`: and nothing that was noted of the policy counts any more."""

    forget: bool


class Lift(msgspec.Struct, frozen=True):
    """Put back what was there, and forget it."""

    khz: int


class Lower(msgspec.Struct, frozen=True):
    """Write a cap, once `original_khz` is noted."""

    khz: int
    original_khz: int


class Refuse(msgspec.Struct, frozen=True):
    """Write nothing. "not_ours" also forgets what was noted: the policy is somebody else's from now on."""

    kind: RefusalKind


Step = Leave | Lift | Lower | Refuse


def whose(found_khz: int, entry: CapEntry, max_khz: int | None, *, kernel_limits: bool) -> Whose:
    """Judge the limit `found_khz` of a policy that we have capped. `kernel_limits`: the kernel lowers clocks for
    heat now, so a limit below ours is its doing."""
    if found_khz in entry.ours_khz:
        return "ours"
    if found_khz == max_khz:
        return "reset"
    if kernel_limits and found_khz < max(entry.ours_khz, default=0):
        return "kernel"
    return "other"


def next_step(
    wanted_khz: int | None,
    found_khz: int,
    entry: CapEntry | None,
    hardware: ClockRange,
    *,
    kernel_limits: bool,
    yielded: bool,
) -> Step:
    """What brings about the limit `wanted_khz` (None: as it was found) where `found_khz` is in force. `yielded`:
    somebody else has set the limit since; the policy is theirs until it reads the hardware's limit again."""
    if entry is None:
        target = found_khz if wanted_khz is None else min(found_khz, hardware.fitted(wanted_khz))
        theirs = yielded and found_khz != hardware.max_khz
        if target == found_khz:
            return Leave(forget=not theirs)
        if theirs:
            return Refuse("not_ours")
        if kernel_limits and found_khz != hardware.max_khz:
            return Refuse("kernel_limit")
        return Lower(target, found_khz)
    owner = whose(found_khz, entry, hardware.max_khz, kernel_limits=kernel_limits)
    if owner == "other":
        return Refuse("not_ours")
    if wanted_khz is None or (wanted_khz >= entry.original_khz and owner != "reset"):
        return Leave(forget=True) if owner == "reset" else Lift(hardware.clamped(entry.original_khz))
    if owner == "reset" and hardware.fitted(wanted_khz) >= found_khz:
        return Leave(forget=True)
    target = min(hardware.fitted(wanted_khz), entry.original_khz)
    if owner != "reset" and target == entry.ours_khz[0]:
        return Leave(forget=False)
    return Lower(target, entry.original_khz)
