from __future__ import annotations

import msgspec

from magnitude.doctor.checks.update import judge
from magnitude.update.terms import FACTORY, Known, Slot, Trial, TrialRecord

A = Slot(name="rootfs.0", bootname="A", booted=True, bootable=True, version="1.0")
B = Slot(name="rootfs.1", bootname="B", booted=False, bootable=True, content="new", version="2.0")
PROVED = TrialRecord(confirmed={"A": FACTORY})
TRIAL = Trial(slot="B", content="new", version="2.0", reboots=3, reason="no answer")


def test_a_machine_without_slots_is_fine() -> None:
    assert judge(Known()).level == "ok"


def test_a_proved_system_is_fine_and_a_new_one_is_worth_a_note() -> None:
    assert judge(Known(slots=(A, B), record=PROVED)).level == "ok"
    assert judge(Known(slots=(A, B))).level == "notice"


def test_an_update_that_was_taken_back_is_a_warning_with_its_reason() -> None:
    record = msgspec.structs.replace(PROVED, trial=msgspec.structs.replace(TRIAL, over=True))
    finding = judge(Known(slots=(A, B), record=record))
    assert finding.level == "warning"
    assert "2.0: no answer" in finding.detail


def test_a_system_that_fails_its_trial_is_an_error() -> None:
    running = (msgspec.structs.replace(A, booted=False), msgspec.structs.replace(B, booted=True))
    record = msgspec.structs.replace(PROVED, trial=TRIAL)
    assert judge(Known(slots=running, record=record)).level == "error"
