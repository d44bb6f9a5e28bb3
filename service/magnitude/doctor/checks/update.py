"""On a device with two root slots: was the running one proved, and was an update taken back?"""

from __future__ import annotations

from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding
from magnitude.update.slots import Rauc, SlotToolError
from magnitude.update.terms import Known
from magnitude.update.trial import standing
from magnitude.update.trial_file import TrialFile


def check(context: DoctorContext) -> Finding:
    try:
        slots = Rauc().slots()
    except SlotToolError as error:
        return Finding(
            level="warning", title="The slot tool does not answer", detail=error.message, advice=error.hint
        )
    return judge(Known(slots=slots, record=TrialFile().peek()))


def judge(known: Known) -> Finding:
    """What the slots and the record say together."""
    slot, trial = known.booted, known.record.trial
    if slot is None:
        return Finding(level="ok", title="This system has no slots for updates")
    where = f"slot {slot.bootname}, {slot.version or 'as flashed'}"
    if trial is not None and trial.over:
        return Finding(
            level="warning",
            title=f"The update in slot {trial.slot} was taken back",
            detail=f"{trial.version or 'no version named'}: {trial.reason}\nrunning: {where}",
            advice="Install another one (`magnitude update install BUNDLE`); this one fails on this device",
        )
    if standing(known) == "confirmed":
        return Finding(level="ok", title="The running system was proved to work", detail=where)
    if trial is not None and (trial.slot, trial.content) == (slot.bootname, slot.content):
        return Finding(
            level="error",
            title="The running system has failed its check after the boot",
            detail=f"{where}: {trial.reason}",
            advice="Look at `journalctl -b -u magnitude-boot-check -u magnitude`",
        )
    return Finding(
        level="notice",
        title="The running system has not been proved yet",
        detail=where,
        advice="That takes some minutes after a boot; `systemctl status magnitude-boot-check` shows how far it is",
    )
