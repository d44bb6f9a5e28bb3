"""Carries out what `trial.py` decides: asks and tells the slot tool, keeps the record, reboots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from magnitude.update.slots import SlotTool
from magnitude.update.terms import GiveUp, Known, Reboot, Settle, TrialRecord, Verdict
from magnitude.update.trial import decide
from magnitude.update.trial_file import TrialFile


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the running slot. `said` are sentences for the journal."""

    end: Literal["good", "no slots", "rebooting", "given up"]
    said: list[str]


def settle(verdict: Verdict, tool: SlotTool, file: TrialFile, *, reboot: Callable[[], None], system: str) -> Outcome:
    """Let `verdict` have its consequences. `system` is what the running system is told apart by (`system_id`).

    Raises `SlotToolError`; nothing was rebooted then, and the slot is not marked good.
    """
    known = Known(slots=tool.slots(), record=file.load())
    decision = decide(known, verdict)
    # A mark is recorded once it is there: power lost in between must not leave a record of a mark that is not.
    if isinstance(decision, Reboot) and not decision.bad and not file.save(decision.record):
        decision = decide(msgspec.structs.replace(known, can_record=False), verdict)
    match decision:
        case Settle():
            return _settle(decision, known, tool, file, system)
        case Reboot():
            return _reboot(decision, tool, file, reboot)
        case GiveUp():
            return _given_up(decision)


def _settle(decision: Settle, known: Known, tool: SlotTool, file: TrialFile, system: str) -> Outcome:
    slot = known.booted
    if decision.good is None or slot is None:
        return Outcome(end="no slots", said=["This system has no slots: there is nothing to mark."])
    said = []
    # Before the mark: with power lost between the two, the next boot finds the slot proved and marks it again.
    if decision.record != known.record and not file.save(decision.record):
        said.append(f"That the slot was proved could not be kept: {file.off}.")
    tool.mark_good(decision.good)
    if not file.tell_helper(slot.bootname, system):
        said.append(f"The record for a check that cannot be made could not be kept in {file.folder}.")
    said.insert(0, f"Slot {slot.bootname} is marked good.")
    for name in decision.bad:
        tool.mark_bad(name)
    said += _fallen_back(decision.record)
    return Outcome(end="good", said=said)


def _fallen_back(record: TrialRecord) -> list[str]:
    trial = record.trial
    if trial is None or not trial.over:
        return []
    version = f" ({trial.version})" if trial.version else ""
    return [f"The update in slot {trial.slot}{version} was taken back: {trial.reason}."]


def _reboot(decision: Reboot, tool: SlotTool, file: TrialFile, reboot: Callable[[], None]) -> Outcome:
    said = [f"This slot has failed its check: {decision.reason}."]
    if decision.bad:
        tool.mark_bad(decision.bad)
        # Without a count it is this mark alone that ends the reboots, so it is read back.
        if any(slot.booted and slot.bootable for slot in tool.slots()):
            return _given_up(GiveUp(reason=decision.reason, why="the boot loader would start the same slot again"))
        file.save(decision.record)
        said.append("It is marked bad: rebooting into the other slot.")
    else:
        trial = decision.record.trial
        count = f" (number {trial.reboots} for this update)" if trial is not None else ""
        said.append(f"Rebooting{count}; the boot loader counts, and falls back.")
    reboot()
    return Outcome(end="rebooting", said=said)


def _given_up(decision: GiveUp) -> Outcome:
    said = [f"This system has failed its check: {decision.reason}.", f"No reboot: {decision.why}."]
    return Outcome(end="given up", said=said)
