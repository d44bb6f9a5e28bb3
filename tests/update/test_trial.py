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
    Wait,
)
from magnitude.update.trial import MAX_REBOOTS, decide, standing

PASSED, FAILED = Verdict(passed=True), Verdict(passed=False, reason="no answer")
A = Slot(name="rootfs.0", bootname="A", booted=False, bootable=True)
B = Slot(name="rootfs.1", bootname="B", booted=True, bootable=True, content="new", version="2")
# B is on trial, and A was proved before it was installed.
UPDATED = Known(slots=(A, B), record=TrialRecord(confirmed={"A": FACTORY}))


def known(verdict: Verdict | None, so_far: Known = UPDATED, **changed: object) -> Known:
    return msgspec.structs.replace(so_far, verdict=verdict, **changed)


def failed_before(**fields: object) -> TrialRecord:
    trial = Trial(**{"slot": "B", "content": "new", "reason": "before", **fields})  # type: ignore[arg-type]
    return TrialRecord(confirmed={"A": FACTORY}, trial=trial)


def test_a_check_that_goes_on_is_waited_for() -> None:
    assert decide(known(None)) == Wait()


def test_a_slot_is_marked_good_when_its_check_has_passed_and_its_predecessor_stays_proved() -> None:
    decision = decide(known(PASSED))
    assert decision == Settle(good="rootfs.1", record=TrialRecord(confirmed={"A": FACTORY, "B": "new"}))


def test_a_slot_that_fails_its_trial_is_rebooted_until_the_boot_loader_has_fallen_back() -> None:
    so_far = known(FAILED)
    for number in range(1, MAX_REBOOTS + 1):
        decision = decide(so_far)
        assert isinstance(decision, Reboot)
        assert (decision.bad, decision.record.trial and decision.record.trial.reboots) == ("", number)
        so_far = known(FAILED, record=decision.record)


def test_a_boot_loader_that_does_not_fall_back_is_told_once_to() -> None:
    decision = decide(known(FAILED, record=failed_before(reboots=MAX_REBOOTS)))
    assert isinstance(decision, Reboot)
    assert decision.bad == "rootfs.1"
    assert isinstance(decide(known(FAILED, record=decision.record)), GiveUp)


def test_a_slot_that_was_proved_is_never_rebooted_for() -> None:
    record = TrialRecord(confirmed={"A": FACTORY, "B": "new"})
    decision = decide(known(FAILED, record=record))
    assert isinstance(decision, GiveUp)
    assert decision.reason == "no answer"


def test_without_another_slot_that_was_proved_nothing_is_rebooted_for() -> None:
    assert isinstance(decide(known(FAILED, record=TrialRecord())), GiveUp)
    unbootable = msgspec.structs.replace(A, bootable=False)
    assert isinstance(decide(known(FAILED, slots=(unbootable, B))), GiveUp)
    overwritten = msgspec.structs.replace(A, content="other")
    assert isinstance(decide(known(FAILED, slots=(overwritten, B))), GiveUp)


def test_another_update_into_a_proved_slot_is_on_trial_again() -> None:
    record = TrialRecord(confirmed={"A": FACTORY, "B": "old"})
    assert standing(known(None, record=record)) == "on trial"
    assert isinstance(decide(known(FAILED, record=record)), Reboot)


def test_reboots_for_an_earlier_update_do_not_count_for_this_one() -> None:
    decision = decide(known(FAILED, record=failed_before(content="old", reboots=MAX_REBOOTS, marked_bad=True)))
    assert isinstance(decision, Reboot)
    assert decision.record.trial is not None
    assert decision.record.trial.reboots == 1


def test_reboots_that_cannot_be_counted_are_bounded_by_a_mark_of_the_boot_loader() -> None:
    decision = decide(known(FAILED, can_record=False))
    assert isinstance(decision, Reboot)
    assert decision.bad == "rootfs.1"
    used_up = msgspec.structs.replace(B, bootable=False)
    decision = decide(known(FAILED, slots=(A, used_up), can_record=False))
    assert isinstance(decision, Reboot)
    assert decision.bad == ""


def test_after_a_fall_back_the_slot_that_failed_is_taken_out_once() -> None:
    slots = (msgspec.structs.replace(A, booted=True), msgspec.structs.replace(B, booted=False))
    decision = decide(known(PASSED, slots=slots, record=failed_before(reboots=3)))
    assert isinstance(decision, Settle)
    assert (decision.good, decision.bad) == ("rootfs.0", ("rootfs.1",))
    assert decision.record.trial is not None
    assert decision.record.trial.over
    out = (slots[0], msgspec.structs.replace(slots[1], bootable=False))
    again = decide(known(PASSED, slots=out, record=decision.record))
    assert isinstance(again, Settle)
    assert again.bad == ()
    assert again.record == decision.record


def test_what_failed_once_and_is_proved_now_is_no_longer_held_against_it() -> None:
    decision = decide(known(PASSED, record=failed_before(reboots=1)))
    assert isinstance(decision, Settle)
    assert decision.record.trial is None


@pytest.mark.parametrize("verdict", [PASSED, FAILED])
def test_a_system_without_slots_is_neither_marked_nor_rebooted(verdict: Verdict) -> None:
    decision = decide(Known(verdict=verdict))
    assert isinstance(decision, Settle if verdict.passed else GiveUp)
    assert standing(Known()) == "no slots"
