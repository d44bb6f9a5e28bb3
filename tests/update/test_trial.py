from __future__ import annotations

import msgspec
import pytest

from magnitude.update.terms import (
    FACTORY,
    GiveUp,
    Known,
    Reboot,
    Settle,
    Slot,
    Trial,
    TrialRecord,
    Verdict,
)
from magnitude.update.trial import MAX_REBOOTS, decide, standing

PASSED, FAILED = Verdict(passed=True), Verdict(passed=False, reason="no answer")
A = Slot(name="rootfs.0", bootname="A", booted=False, bootable=True)
B = Slot(name="rootfs.1", bootname="B", booted=True, bootable=True, content="new", version="2")
# B is on trial, and A was proved before it was installed.
UPDATED = Known(slots=(A, B), record=TrialRecord(confirmed={"A": FACTORY}))


def known(**changed: object) -> Known:
    return msgspec.structs.replace(UPDATED, **changed)


def failed_before(**fields: object) -> TrialRecord:
    trial = Trial(**{"slot": "B", "content": "new", "reason": "before", **fields})  # type: ignore[arg-type]
    return TrialRecord(confirmed={"A": FACTORY}, trial=trial)


def test_a_slot_is_marked_good_when_its_check_has_passed_and_its_predecessor_stays_proved() -> None:
    decision = decide(known(), PASSED)
    assert decision == Settle(good="rootfs.1", record=TrialRecord(confirmed={"A": FACTORY, "B": "new"}))


def test_a_slot_that_fails_its_trial_is_rebooted_until_the_boot_loader_has_fallen_back() -> None:
    so_far = known()
    for number in range(1, MAX_REBOOTS + 1):
        decision = decide(so_far, FAILED)
        assert isinstance(decision, Reboot)
        assert (decision.bad, decision.record.trial and decision.record.trial.reboots) == ("", number)
        so_far = known(record=decision.record)


def test_a_boot_loader_that_does_not_fall_back_is_told_once_to() -> None:
    decision = decide(known(record=failed_before(reboots=MAX_REBOOTS)), FAILED)
    assert isinstance(decision, Reboot)
    assert decision.bad == "rootfs.1"
    assert isinstance(decide(known(record=decision.record), FAILED), GiveUp)


def test_a_slot_that_was_proved_is_never_rebooted_for() -> None:
    record = TrialRecord(confirmed={"A": FACTORY, "B": "new"})
    decision = decide(known(record=record), FAILED)
    assert isinstance(decision, GiveUp)
    assert decision.reason == "no answer"


def test_without_another_slot_that_was_proved_nothing_is_rebooted_for() -> None:
    assert isinstance(decide(known(record=TrialRecord()), FAILED), GiveUp)
    unbootable = msgspec.structs.replace(A, bootable=False)
    assert isinstance(decide(known(slots=(unbootable, B)), FAILED), GiveUp)
    overwritten = msgspec.structs.replace(A, content="other")
    assert isinstance(decide(known(slots=(overwritten, B)), FAILED), GiveUp)


def test_another_update_into_a_proved_slot_is_on_trial_again() -> None:
    record = TrialRecord(confirmed={"A": FACTORY, "B": "old"})
    assert standing(known(record=record)) == "on trial"
    assert isinstance(decide(known(record=record), FAILED), Reboot)


def test_reboots_for_an_earlier_update_do_not_count_for_this_one() -> None:
    decision = decide(known(record=failed_before(content="old", reboots=MAX_REBOOTS, marked_bad=True)), FAILED)
    assert isinstance(decision, Reboot)
    assert decision.record.trial is not None
    assert decision.record.trial.reboots == 1


def test_reboots_that_cannot_be_counted_are_bounded_by_a_mark_of_the_boot_loader() -> None:
    decision = decide(known(can_record=False), FAILED)
    assert isinstance(decision, Reboot)
    assert decision.bad == "rootfs.1"
    used_up = msgspec.structs.replace(B, bootable=False)
    decision = decide(known(slots=(A, used_up), can_record=False), FAILED)
    assert isinstance(decision, Reboot)
    assert decision.bad == ""


def test_after_a_fall_back_the_slot_that_failed_is_taken_out_once() -> None:
    slots = (msgspec.structs.replace(A, booted=True), msgspec.structs.replace(B, booted=False))
    decision = decide(known(slots=slots, record=failed_before(reboots=3)), PASSED)
    assert isinstance(decision, Settle)
    assert (decision.good, decision.bad) == ("rootfs.0", ("rootfs.1",))
    assert decision.record.trial is not None
    assert decision.record.trial.over
    out = (slots[0], msgspec.structs.replace(slots[1], bootable=False))
    again = decide(known(slots=out, record=decision.record), PASSED)
    assert isinstance(again, Settle)
    assert again.bad == ()
    assert again.record == decision.record


def test_what_failed_once_and_is_proved_now_is_no_longer_held_against_it() -> None:
    decision = decide(known(record=failed_before(reboots=1)), PASSED)
    assert isinstance(decision, Settle)
    assert decision.record.trial is None


@pytest.mark.parametrize("verdict", [PASSED, FAILED])
def test_a_system_without_slots_is_neither_marked_nor_rebooted(verdict: Verdict) -> None:
    decision = decide(Known(), verdict)
    assert isinstance(decision, Settle if verdict.passed else GiveUp)
    assert standing(Known()) == "no slots"
