"""The language of a trial: slots, what is known of them, and what is to be done."""

from __future__ import annotations

from typing import Literal

import msgspec

# What stands for the content of a slot that came with the flashed image: nothing was installed into it since.
FACTORY = "factory"


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A root slot. `name` is the slot tool's, `bootname` the boot loader's. `content` names what was installed, so
    that two updates into one slot are told apart. `bootable`: the boot loader would start it."""

    name: str
    bootname: str
    booted: bool
    bootable: bool
    content: str = FACTORY
    version: str = ""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A content that failed its check after a boot. `reboots` were made for it by the gate; `reason` is of the last
    time. `marked_bad`: the boot loader was told to start it no more. `over`: the device has gone back since."""

    slot: str
    content: str
    version: str = ""
    reboots: int = 0
    reason: str = ""
    marked_bad: bool = False
    over: bool = False


class TrialRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What outlasts a reboot. `confirmed`: by boot name, the content that was last proved there."""

    confirmed: dict[str, str] = {}
    trial: Trial | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a check after a boot. `reason` is empty when it passed."""

    passed: bool
    reason: str = ""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a decision sees beside the verdict. `can_record` is false once the record could not be
    written."""

    slots: tuple[Slot, ...] = ()
    record: TrialRecord = TrialRecord()
    can_record: bool = True

    @property
    def booted(self) -> Slot | None:
        return next((slot for slot in self.slots if slot.booted), None)


class Settle(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The check has passed. `good` is the slot to be marked so (None: there are no slots here), `bad` are slots whose
    trial failed; `record` is to be kept."""

    good: str | None
    bad: tuple[str, ...] = ()
    record: TrialRecord = TrialRecord()


class Reboot(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The check has failed: keep `record`, then reboot. `bad` is a slot that is marked bad before either, and without
    which mark there is neither ("": none, the boot loader counts by itself)."""

    record: TrialRecord
    reason: str
    bad: str = ""


class GiveUp(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The check has failed, and a reboot would mend nothing: stay, visibly failed. `why` there is no reboot."""

    reason: str
    why: str


Decision = Settle | Reboot | GiveUp
Standing = Literal["no slots", "confirmed", "on trial"]
