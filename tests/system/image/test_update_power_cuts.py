"""Whenever the power fails during an update, the machine boots. Takes an hour: not part of CI.

pytest -m on_demand tests/system/image/test_update_power_cuts.py

One update is recorded with every write and flush, from the first boot until the new slot is confirmed. From the
record disks are made that a cut could have left, and each is booted with firmware, boot loader and all, until its
file systems are mounted. Some go on until the check of the boot has confirmed the slot by real inference.
"""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from image_machine import BOOT_S, ImageMachine, extra_disk, overlay_disk
from power_cut import disks_after, read_log
from tested_image import ImageUnderTest
from update_cuts import CUTS_BESIDE_DECISIONS, CUTS_WHILE_WRITING, Recording, moments, partition_of

pytestmark = [pytest.mark.system, pytest.mark.on_demand]

# Of these so many go on to an answer: every one of them would take hours in emulation.
TO_AN_ANSWER = 4
# While an update is recorded the service would only take time: what is cut is between boot loader, RAUC and disk.
QUIET = "magnitude.service magnitude.socket magnitude-boot-check.service magnitude-self-test.service"
LOG_BYTES = 8 << 30  # sparse


@pytest.fixture(scope="module")
def recording(tested: ImageUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("recording")
    base, disk, log = (folder / name for name in ("base.img", "disk.img", "log.img"))
    for target in (base, disk):
        subprocess.run(["cp", "--sparse=always", tested.image, target], check=True)
    with log.open("wb") as file:
        file.truncate(LOG_BYTES)
    options = [
        *("-blockdev", f"driver=file,filename={disk},node-name=file"),
        *("-blockdev", f"driver=file,filename={log},node-name=log"),
        *("-blockdev", "driver=raw,file=file,node-name=raw"),
        *("-blockdev", "driver=blklogwrites,file=raw,log=log,log-sector-size=512,node-name=recorded"),
        # Merged, a request may have as many pieces as the host takes at once; the record adds one, and loses it then.
        *("-device", "virtio-blk-pci,drive=recorded,bootindex=0,request-merging=off"),
        *extra_disk(tested.good),
    ]
    with ImageMachine(tested.architecture, options, folder / "run") as machine:
        for slot in "AB":
            assert machine.slot() == slot
            machine.check(f"systemctl mask --runtime --now {QUIET}", timeout_s=BOOT_S)
            # The agent answers before these are there, and RAUC needs both.
            machine.until("systemctl is-active --quiet dbus.socket && mountpoint -q /boot/firmware", timeout_s=BOOT_S)
            # What the check of a boot does when it has passed.
            machine.check("rauc status mark-good", timeout_s=BOOT_S)
            if slot == "A":
                machine.install(tested.good)
                assert machine.reboot() == "AB"
        machine.check("sync")
        machine.control("quit")
    requests = read_log(log)
    log.unlink()
    disk.unlink()
    begin = next(index for index, request in enumerate(requests) if partition_of(request) == "root-b")
    return Recording(base, requests, begin)


@pytest.fixture(scope="module")
def chosen(recording: Recording) -> list[int]:
    found = moments(recording, random.Random(1))
    assert len(found) == CUTS_WHILE_WRITING + CUTS_BESIDE_DECISIONS
    return found


def test_a_machine_that_loses_power_during_an_update_boots_at_the_first_attempt(
    recording: Recording, chosen: list[int], tested: ImageUnderTest, tmp_path: Path
) -> None:
    slots = ""
    for moment, disk in disks_after(recording.base, recording.requests, chosen, random.Random(2), tmp_path):
        changed = tmp_path / f"disk-{moment}.qcow2"
        with ImageMachine(tested.architecture, overlay_disk(disk, changed), tmp_path / f"run-{moment}") as machine:
            slot = machine.slot()
            assert machine.boots() == slot, f"cut before request {moment}"
            for place in ("/data", "/var/lib/magnitude", "/var/lib/rauc", "/etc/magnitude"):
                machine.check(f"mountpoint -q {place} && test -w {place}", timeout_s=BOOT_S)
            # Nothing waits for this partition, so it may come after the agent.
            machine.until("mountpoint -q /boot/firmware", timeout_s=BOOT_S)
            assert f"{slot}_OK=1" in machine.check("grub-editenv /boot/firmware/grub/grubenv list")
        changed.unlink()
        slots += slot
        print(f"cut before request {moment} of {len(recording.requests)}: {slot}", flush=True)
    # Old until the switch, new from then on; both were seen.
    assert slots == "A" * slots.count("A") + "B" * slots.count("B")
    assert set(slots) == {"A", "B"}


def test_after_a_cut_the_slot_that_boots_answers_and_is_confirmed(
    recording: Recording, chosen: list[int], tested: ImageUnderTest, tmp_path: Path
) -> None:
    some = chosen[:: len(chosen) // TO_AN_ANSWER]
    for moment, disk in disks_after(recording.base, recording.requests, some, random.Random(3), tmp_path):
        changed = tmp_path / f"disk-{moment}.qcow2"
        with ImageMachine(tested.architecture, overlay_disk(disk, changed), tmp_path / f"run-{moment}") as machine:
            slot = machine.slot()
            machine.wait_confirmed(slot)
            machine.wait_ready()
            assert machine.boots() == slot, f"cut before request {moment}"
        changed.unlink()
