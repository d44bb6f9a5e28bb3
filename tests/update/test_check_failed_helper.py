"""The helper that acts when not even the check could be made."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from magnitude.units.shipped import shipped_folder
from magnitude.update.trial_file import HELPER_REBOOTS, PROVED, TrialFile, system_id

HELPER = shipped_folder() / "image/libexec/magnitude-boot-check-failed"


class Device:
    """A root whose slot B runs, and where A was proved."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "var/lib/rauc"
        for folder in ("proc", "etc", "bin", "var/lib/rauc"):
            (root / folder).mkdir(parents=True)
        (root / "proc/cmdline").write_text("console=ttyS0 rauc.slot=B ro quiet\n")
        (root / "etc/os-release").write_text("NAME=x\nVERSION=2\n")
        (self.data / PROVED).write_text("A 00\n")
        systemctl = root / "bin/systemctl"
        systemctl.write_text(f'#!/bin/sh\necho "$*" >>{root}/asked\n')
        systemctl.chmod(0o755)

    def ended(self, result: str = "exit-code", status: str = "1") -> str:
        """What it says after an end of the check."""
        environ = {"PATH": f"{self.root}/bin:/usr/bin:/bin", "SERVICE_RESULT": result, "EXIT_STATUS": status}
        done = subprocess.run(["sh", str(HELPER), str(self.root)], env=environ, capture_output=True, text=True)
        return done.stdout + done.stderr

    @property
    def reboots(self) -> int:
        asked = self.root / "asked"
        return asked.read_text().count("reboot") if asked.exists() else 0


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def test_a_check_that_cannot_be_made_costs_a_slot_on_trial_three_reboots_at_most(device: Device) -> None:
    for _ in range(6):
        device.ended()
    assert device.reboots == 3


@pytest.mark.parametrize(("result", "status"), [("success", "0"), ("success", "TERM"), ("exit-code", "3")])
def test_a_check_that_was_made_has_decided_itself(device: Device, result: str, status: str) -> None:
    assert device.ended(result, status) == ""
    assert device.reboots == 0


@pytest.mark.parametrize(("result", "status"), [("signal", "KILL"), ("timeout", "TERM"), ("exit-code", "203")])
def test_a_check_that_was_killed_or_could_not_be_started_is_one_that_was_not_made(
    device: Device, result: str, status: str
) -> None:
    device.ended(result, status)
    assert device.reboots == 1


def test_a_system_that_was_proved_is_not_rebooted_for(device: Device) -> None:
    assert TrialFile(device.data).tell_helper("B", system_id(device.root / "etc/os-release"))
    assert "proved to work before" in device.ended()
    assert device.reboots == 0
    (device.root / "etc/os-release").write_text("NAME=x\nVERSION=3\n")
    device.ended()
    assert device.reboots == 1


def test_without_another_slot_that_was_proved_there_is_no_reboot(device: Device) -> None:
    for lines in ("", "B 00\n"):
        (device.data / PROVED).write_text(lines)
        assert "no other slot" in device.ended()
    (device.data / PROVED).unlink()
    device.ended()
    assert device.reboots == 0


def test_without_slots_there_is_no_reboot(device: Device) -> None:
    (device.root / "proc/cmdline").write_text("quiet\n")
    assert "no slots" in device.ended()
    assert device.reboots == 0


def test_a_reboot_that_cannot_be_written_down_is_not_made(device: Device) -> None:
    (device.data / HELPER_REBOOTS).symlink_to(device.root / "absent/file")  # cannot be made, by root either
    device.ended()
    assert device.reboots == 0


@pytest.mark.parametrize("content", ["", "many\n", "-1\n"])
def test_a_count_that_cannot_be_read_counts_as_used_up(device: Device, content: str) -> None:
    (device.data / HELPER_REBOOTS).write_text(content)
    device.ended()
    assert device.reboots == 0


def test_service_and_helper_tell_systems_apart_in_the_same_way(device: Device) -> None:
    expected = hashlib.sha256(b"NAME=x\nVERSION=2\n").hexdigest()
    assert system_id(device.root / "etc/os-release") == expected
    assert system_id(device.root / "etc/absent") == ""
