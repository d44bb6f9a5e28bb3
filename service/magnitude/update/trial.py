"""Which slot is right: the decision after each boot. Pure.

A slot that was never proved is on trial. It is proved by the check alone (`boot_check.py`), never by having booted.
While it fails, the device reboots, a bounded number of times: each boot costs the slot one of the tries that the boot
loader counts, and when they are used up it starts the other slot. A slot that was proved before is never rebooted
for: what fails then is not the update, and a device that reboots for ever helps nobody.
"""

from __future__ import annotations

import msgspec

from magnitude.update.terms import (
    Decision,
    GiveUp,
    Known,
    Reboot,
    Settle,
    Slot,
    Standing,
    Trial,
    TrialRecord,
    Verdict,
)

# As many tries as the boot loader gives a slot: with the last of these reboots it falls back by itself. Where it does
# not (its counter cannot be written), the slot is marked bad instead.
MAX_REBOOTS = 3


def decide(known: Known, verdict: Verdict) -> Decision:
    """What follows from `verdict`. There is nothing to decide while the check goes on."""
    slot = known.booted
    if verdict.passed:
        return _settled(known, slot)
    reason = verdict.reason
    if slot is None:
        return GiveUp(reason=reason, why="this system was not started from a slot that could be changed for another")
    if is_confirmed(slot, known.record):
        return GiveUp(
            reason=reason,
            why=f"slot {slot.bootname} was proved to work before, so what fails now is not the update",
        )
    fallback = fallback_of(known)
    if fallback is None:
        return GiveUp(reason=reason, why="there is no other slot that was proved to work")
    return _failed(known, slot, reason)


def is_confirmed(slot: Slot, record: TrialRecord) -> bool:
    """Whether what `slot` holds was proved on this device."""
    return record.confirmed.get(slot.bootname) == slot.content


def fallback_of(known: Known) -> Slot | None:
    """The other slot that was proved and that the boot loader would start."""
    others = (slot for slot in known.slots if not slot.booted)
    return next((slot for slot in others if slot.bootable and is_confirmed(slot, known.record)), None)


def standing(known: Known) -> Standing:
    """Where the running slot stands."""
    if known.booted is None:
        return "no slots"
    return "confirmed" if is_confirmed(known.booted, known.record) else "on trial"


def _settled(known: Known, slot: Slot | None) -> Settle:
    if slot is None:
        return Settle(good=None, record=known.record)
    trial = known.record.trial
    others = {other.bootname: other for other in known.slots if not other.booted}
    bad: tuple[str, ...] = ()
    if trial is not None:
        tried = others.get(trial.slot)
        if tried is not None and tried.content == trial.content:
            # The device has fallen back. A boot loader that finds no tries left anywhere may begin anew with the slot
            # that failed: it is taken out.
            bad = (tried.name,) if tried.bootable or not trial.marked_bad else ()
            trial = msgspec.structs.replace(trial, over=True, marked_bad=True)
        else:
            trial = None  # what failed once is proved now, or has been replaced
    confirmed = {name: content for name, content in known.record.confirmed.items() if name != slot.bootname}
    confirmed[slot.bootname] = slot.content
    return Settle(good=slot.name, bad=bad, record=TrialRecord(confirmed=confirmed, trial=trial))


def _failed(known: Known, slot: Slot, reason: str) -> Decision:
    before = known.record.trial
    if before is None or (before.slot, before.content) != (slot.bootname, slot.content):
        before = Trial(slot=slot.bootname, content=slot.content, version=slot.version)
    trial = msgspec.structs.replace(before, reason=reason, over=False)

    def kept(**changed: object) -> TrialRecord:
        return msgspec.structs.replace(known.record, trial=msgspec.structs.replace(trial, **changed))

    if known.can_record:
        if trial.reboots < MAX_REBOOTS:
            return Reboot(record=kept(reboots=trial.reboots + 1), reason=reason)
        if trial.marked_bad:
            return GiveUp(reason=reason, why="the boot loader started the slot again that was marked bad")
    elif not slot.bootable:
        # The boot loader's own storage says that it will not start the slot again: that bounds it without a count.
        return Reboot(record=known.record, reason=reason)
    # Likewise, once the mark is there; it is read back.
    return Reboot(record=kept(marked_bad=True), reason=reason, bad=slot.name)
