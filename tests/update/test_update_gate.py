"""The gate with a slot tool that is an executable, and a record on a real file system."""

from __future__ import annotations

from pathlib import Path

import pytest
from stub_rauc import StubRauc

from magnitude.update.gate import Outcome, settle
from magnitude.update.slots import Rauc, SlotToolError
from magnitude.update.terms import TrialRecord, Verdict
from magnitude.update.trial_file import HELPER_REBOOTS, PROVED, RECORD, TrialFile

PASSED, FAILED = Verdict(passed=True), Verdict(passed=False, reason="golden texts differ")


class CountedFile(TrialFile):
    """A record that keeps what was written to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.saved: list[TrialRecord] = []

    def save(self, record: TrialRecord) -> bool:
        self.saved.append(record)
        return super().save(record)


class Device:
    """A stub of the slot tool, a folder for the record, and reboots that go through the stub's boot loader."""

    def __init__(self, folder: Path) -> None:
        self.stub = StubRauc(folder / "tool")
        self.data = folder / "data"
        self.data.mkdir()
        self.reboots = 0
        self.saved: list[TrialRecord] = []

    def reboot(self) -> None:
        self.reboots += 1
        self.stub.boot()

    def checked(self, verdict: Verdict) -> Outcome:
        file = CountedFile(self.data)
        try:
            return settle(verdict, Rauc((str(self.stub.path),)), file, reboot=self.reboot, system=f"id-{self.slot}")
        finally:
            self.saved = file.saved

    @property
    def slot(self) -> str:
        return str(self.stub.state["booted"])

    def updated(self) -> None:
        """A proves itself, an update is installed into B, and the device reboots into it."""
        self.stub.boot()
        assert self.checked(PASSED).end == "good"
        Rauc((str(self.stub.path),)).install("2.0")
        assert self.stub.boot() == "B"


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def test_a_good_update_is_marked_and_stays(device: Device) -> None:
    device.updated()
    assert device.checked(PASSED).end == "good"
    assert device.stub.asked[-1] == "status mark-good rootfs.1"
    for _ in range(10):
        assert device.stub.boot() == "B"
        assert device.checked(PASSED).end == "good"
    assert device.reboots == 0


def test_an_update_that_fails_is_taken_back_and_told(device: Device) -> None:
    device.updated()
    ends = []
    while device.slot == "B":
        ends.append(device.checked(FAILED).end)
    assert ends == ["rebooting"] * 3
    outcome = device.checked(PASSED)
    assert outcome.end == "good"
    assert "taken back: golden texts differ" in outcome.said[-1]
    assert device.stub.state["order"] == ["A"]
    assert device.checked(FAILED).end == "given up"


def test_where_nothing_can_be_written_down_the_boot_loaders_mark_ends_the_trial(device: Device) -> None:
    device.updated()
    # A folder in the place of the next file: renaming onto it fails for root as well, as on read-only storage.
    record = (device.data / RECORD).read_bytes()
    for name in (RECORD, f"{RECORD}.bak"):
        (device.data / name).unlink(missing_ok=True)
    (device.data / f"{RECORD}.bak").write_bytes(record)
    (device.data / RECORD).mkdir()
    outcome = device.checked(FAILED)
    assert outcome.end == "rebooting"
    assert "status mark-bad rootfs.1" in device.stub.asked
    assert (device.slot, device.reboots) == ("A", 1)


def test_a_boot_loader_that_takes_no_mark_is_not_rebooted_for(device: Device) -> None:
    device.updated()
    device.stub.set(stubborn=True, left={"A": 3, "B": 99})
    for _ in range(3):
        assert device.checked(FAILED).end == "rebooting"
    outcome = device.checked(FAILED)
    assert outcome.end == "given up"
    assert "would start the same slot again" in outcome.said[-1]
    assert device.reboots == 3


def test_each_failure_is_recorded_once_and_a_mark_only_when_it_is_there(device: Device) -> None:
    device.updated()
    # A boot loader that does not count: four reboots, the last of them by a mark.
    for reboots, marked in ((1, False), (2, False), (3, False), (3, True)):
        device.stub.set(left={"A": 3, "B": 99})
        assert device.checked(FAILED).end == "rebooting"
        (record,) = device.saved
        assert record.trial is not None
        assert (record.trial.reboots, record.trial.marked_bad) == (reboots, marked)
    assert device.slot == "A"


def test_a_mark_that_was_not_taken_is_not_recorded_as_one(device: Device) -> None:
    device.updated()
    device.stub.set(stubborn=True, left={"A": 3, "B": 99})
    for _ in range(3):
        device.checked(FAILED)
    assert device.checked(FAILED).end == "given up"
    assert device.saved == []
    trial = TrialFile(device.data).load().trial
    assert trial is not None
    assert not trial.marked_bad


def test_a_slot_tool_that_does_not_answer_marks_and_reboots_nothing(device: Device) -> None:
    device.updated()
    device.stub.set(fails=True)
    for verdict in (PASSED, FAILED):
        with pytest.raises(SlotToolError):
            device.checked(verdict)
    assert device.reboots == 0


def test_the_helper_is_told_what_was_proved_and_its_count_begins_anew(device: Device) -> None:
    device.updated()
    (device.data / HELPER_REBOOTS).write_text("2\n")
    device.checked(PASSED)
    assert (device.data / PROVED).read_text() == "A id-A\nB id-B\n"
    assert not (device.data / HELPER_REBOOTS).exists()


def test_a_helper_that_cannot_be_told_is_no_failure_and_is_said(device: Device) -> None:
    device.updated()
    (device.data / PROVED).unlink()
    (device.data / PROVED / "in the way").mkdir(parents=True)
    outcome = device.checked(PASSED)
    assert outcome.end == "good"
    assert any("could not be kept" in line for line in outcome.said)


def test_looking_at_the_record_changes_nothing(device: Device) -> None:
    device.updated()
    (device.data / RECORD).write_bytes(b"torn")
    before = sorted(path.name for path in device.data.iterdir())
    TrialFile(device.data).peek()
    assert sorted(path.name for path in device.data.iterdir()) == before


def test_a_newer_version_finds_what_an_older_one_has_proved_and_the_other_way_round(device: Device) -> None:
    """Fields that one of them does not know are passed over; a new number would hide the slot to fall back to."""
    device.updated()
    data = (device.data / RECORD).read_bytes()
    from magnitude.persist import sealed

    newer = {"confirmed": {"A": "factory"}, "trial": None, "a_new_field": {"of": "a newer version"}}
    (device.data / RECORD).write_bytes(sealed(newer, schema=1))
    assert TrialFile(device.data).load().confirmed == {"A": "factory"}
    assert b'"schema":1' in data
