"""A device in simulated time: a boot loader that counts, slots that work or do not, an owner who reboots at will."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from magnitude.update.terms import FACTORY, GiveUp, Known, Reboot, Settle, Slot, TrialRecord, Verdict
from magnitude.update.trial import MAX_REBOOTS, decide

Loader = Literal["u-boot", "grub"]
# What a boot brings: the check passes or fails, or the owner reboots before it has ended.
Boot = Literal["passes", "fails", "rebooted"]
BOOTS = st.lists(st.sampled_from(["passes", "fails", "rebooted"]), max_size=20)
LOADERS = st.sampled_from(["u-boot", "grub"])
TRIES = {"u-boot": 3, "grub": 1}


class Device:
    """Slots A (proved) and B, into which an update has just been installed."""

    def __init__(self, loader: Loader, *, writable: bool = True, counts: bool = True, obeys: bool = True) -> None:
        self.tries = TRIES[loader]
        self.order = ["B", "A"]
        self.left = {"A": self.tries, "B": self.tries}
        self.content = {"A": FACTORY, "B": "update"}
        self.record = TrialRecord(confirmed={"A": FACTORY})
        self.writable, self.counts, self.obeys = writable, counts, obeys
        self.own_reboots = 0
        self.given_up = False
        self.booted = ""
        self.start()

    def start(self) -> None:
        for name in self.order:
            if self.left[name] > 0:
                self.left[name] -= self.counts
                self.booted = name
                return
        self.order, self.left = ["A", "B"], {"A": self.tries, "B": self.tries}
        self.start()

    def slots(self) -> tuple[Slot, ...]:
        return tuple(
            Slot(
                name=f"rootfs.{number}",
                bootname=name,
                booted=name == self.booted,
                bootable=name in self.order and self.left[name] > 0,
                content=self.content[name],
            )
            for number, name in enumerate("AB")
        )

    def mark(self, name: str, *, good: bool) -> None:
        bootname = "AB"[int(name[-1])]
        if good:
            self.left[bootname] = self.tries
        elif self.obeys:
            self.left[bootname] = 0
            self.order = [other for other in self.order if other != bootname]

    def checked(self, *, passed: bool) -> None:
        """The check ends, and the gate does as `gate.py` does."""
        self.given_up = False
        known = Known(slots=self.slots(), record=self.record)
        verdict = Verdict(passed=passed, reason="" if passed else "x")
        decision = decide(known, verdict)
        if isinstance(decision, Reboot) and not decision.bad and not self.writable:
            decision = decide(msgspec.structs.replace(known, can_record=False), verdict)
        match decision:
            case Settle(good=good, bad=bad, record=record):
                assert good is not None
                self.keep(record)
                self.mark(good, good=True)
                for name in bad:
                    self.mark(name, good=False)
            case Reboot(record=record, bad=bad):
                if bad:
                    self.mark(bad, good=False)
                    if any(slot.booted and slot.bootable for slot in self.slots()):
                        self.given_up = True
                        return
                self.keep(record)
                self.own_reboots += 1
                self.start()
            case GiveUp():
                self.given_up = True

    def keep(self, record: TrialRecord) -> None:
        if self.writable:
            self.record = record

    def lives(self, works: Callable[[str], bool], boots: int = 40) -> None:
        """Boots until nothing moves any more."""
        for _ in range(boots):
            before = self.booted, self.own_reboots
            self.checked(passed=works(self.booted))
            if (self.booted, self.own_reboots) == before:
                return
        raise AssertionError("the device does not come to rest")


@given(LOADERS, st.booleans(), st.booleans())
def test_an_update_that_never_works_ends_in_the_slot_before_within_a_bounded_number_of_reboots(
    loader: Loader, writable: bool, counts: bool
) -> None:
    device = Device(loader, writable=writable, counts=counts)
    device.lives(lambda slot: slot == "A")
    assert device.booted == "A"
    assert not device.given_up
    assert 1 <= device.own_reboots <= MAX_REBOOTS + 1
    for _ in range(10):  # and it stays there, whenever it is rebooted
        device.start()
        assert device.booted == "A"
        device.checked(passed=True)


@given(LOADERS, st.booleans(), st.booleans(), st.booleans())
def test_a_device_on_which_nothing_works_comes_to_rest(
    loader: Loader, writable: bool, counts: bool, obeys: bool
) -> None:
    device = Device(loader, writable=writable, counts=counts, obeys=obeys)
    device.lives(lambda slot: False)
    assert device.given_up
    assert device.own_reboots <= MAX_REBOOTS + 1


@given(st.integers(0, 2))
def test_an_owner_who_reboots_twice_during_the_trial_loses_no_update(reboots: int) -> None:
    device = Device("u-boot")
    for _ in range(reboots):
        device.start()
    device.checked(passed=True)
    assert device.booted == "B"
    assert device.record.confirmed["B"] == "update"
    assert device.own_reboots == 0


@given(LOADERS, BOOTS)
def test_a_proved_slot_is_stayed_in_whatever_happens(loader: Loader, boots: list[Boot]) -> None:
    device = Device(loader)
    device.checked(passed=True)
    for boot in boots:
        if boot != "rebooted":
            device.checked(passed=boot == "passes")
    assert device.own_reboots == 0
    assert device.booted == "B"


@given(LOADERS, BOOTS, st.booleans())
def test_only_a_check_that_has_passed_marks_a_slot_good(loader: Loader, boots: list[Boot], writable: bool) -> None:
    device = Device(loader, writable=writable)
    proved = {"A"}
    for boot in boots:
        running = device.booted
        if boot == "rebooted":
            device.start()
            continue
        left = device.left[running]
        device.checked(passed=boot == "passes")
        if boot == "passes":
            proved.add(running)
        else:
            assert device.left[running] <= max(left, device.tries - 1)
        assert set(device.record.confirmed) <= proved


@given(LOADERS, BOOTS)
def test_every_reboot_of_the_gate_follows_a_check_that_has_failed_in_a_slot_that_was_not_proved(
    loader: Loader, boots: list[Boot]
) -> None:
    device = Device(loader)
    for boot in boots:
        if boot == "rebooted":
            device.start()
            continue
        running, confirmed, before = device.booted, dict(device.record.confirmed), device.own_reboots
        device.checked(passed=boot == "passes")
        if device.own_reboots != before:
            assert boot == "fails"
            assert confirmed.get(running) != device.content[running]
