"""Updates of a running image: a good one is taken, one that cannot infer is not, whatever is broken in it.

Takes hours: not part of CI.

pytest -m on_demand tests/system/image/test_image_updates.py
"""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from broken_slots import BROKEN, break_slot, hurry_slot
from image_machine import BOOT_S, ImageMachine, extra_disk
from tested_image import BAD, DATA_MIB, GOOD, SLOT_MIB, ImageUnderTest

from image.guest import qemu
from image.guest.build import Parts
from image.guest.bundle import make_bundle, make_key
from magnitude.schedule.throughput import SCHEMA

pytestmark = [pytest.mark.system, pytest.mark.on_demand]

KEPT = "/var/lib/magnitude/kept"
# What the service measured of its models here: written once for each model, in the version's own form.
MEASURED = "/var/lib/magnitude/throughput.json"


class Story(NamedTuple):
    """What happened to one machine, and its disk with an update that is installed and was not booted yet."""

    disk: Path
    slots: str
    machine_id: str
    refused: dict[str, str]
    standing: dict[str, Any]


@pytest.fixture(scope="module")
def story(tested: ImageUnderTest, forged: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """A machine boots, proves its slot, refuses forged updates, takes one that cannot infer, falls back, and has
    a good one installed at last."""
    folder = tmp_path_factory.mktemp("story")
    disk = folder / "disk.img"
    subprocess.run(["cp", "--sparse=always", tested.image, disk], check=True)
    extra = [*extra_disk(tested.good, 0), *extra_disk(tested.bad, 1), *extra_disk(forged, 2)]
    with ImageMachine(tested.architecture, [*qemu.disk(disk), *extra], folder / "run") as machine:
        machine.wait_confirmed("A")
        machine_id = machine.check("cat /etc/machine-id")
        machine.check(f"echo kept >{KEPT}")
        refused = refusals(machine, tested, forged)
        machine.install(tested.bad, 1)
        assert machine.slot() == "A"  # until the next boot
        machine.reboot()
        slots = machine.wait_boots(5, within_s=4 * BOOT_S)
        machine.wait_confirmed("A")
        standing = status(machine)
        machine.install(tested.good, 0)
        machine.power_off()
    return Story(disk, slots, machine_id, refused, standing)


@pytest.fixture(scope="module")
def forged(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An update that is whole in every way and signed with a key of somebody else."""
    folder, keys = tmp_path_factory.mktemp("forged"), tmp_path_factory.mktemp("keys")
    make_key(parts.workshop, keys)
    (folder / "rootfs.ext4").write_bytes(random.Random(1).randbytes(1 << 20))
    make_bundle(parts.workshop, folder, "rootfs.ext4", folder / "forged.raucb", keys, "amd64", "99.9.9")
    return folder / "forged.raucb"


def refusals(machine: ImageMachine, tested: ImageUnderTest, forged: Path) -> dict[str, str]:
    """What RAUC says to updates that are none of ours; "" where it takes one."""
    said = {}
    size = tested.good.stat().st_size
    copy, install = "/data/update.raucb", "rauc install /data/update.raucb"
    machine.check(f"head -c {forged.stat().st_size} /dev/disk/by-id/virtio-extra2 >{copy}", timeout_s=BOOT_S)
    said["another key"] = refusal(machine, install)
    machine.check(f"head -c {size} /dev/disk/by-id/virtio-extra0 >{copy}", timeout_s=BOOT_S)
    machine.check(f"printf x | dd of={copy} bs=1 seek={size - 300} conv=notrunc status=none")
    said["signature"] = refusal(machine, install)
    # One byte of the content: found by the hash tree when it is read.
    machine.check(f"head -c {size} /dev/disk/by-id/virtio-extra0 >{copy}", timeout_s=BOOT_S)
    machine.check(f"printf x | dd of={copy} bs=1 seek={size // 2} conv=notrunc status=none")
    said["content"] = refusal(machine, install)
    machine.check(f"rm {copy}")
    return said


def refusal(machine: ImageMachine, command: str) -> str:
    done = machine.run(command, timeout_s=BOOT_S)
    return done.output if done.status else ""


def status(machine: ImageMachine) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(machine.check("magnitude update status --json", timeout_s=BOOT_S))
    return found


def measured(machine: ImageMachine) -> dict[str, Any]:
    """What the service of this version has measured, as soon as it is written."""
    written = f"for i in $(seq {BOOT_S:.0f}); do [ -e {MEASURED} ] && exec cat {MEASURED}; sleep 1; done; exit 1"
    found: dict[str, Any] = json.loads(machine.check(written, timeout_s=2 * BOOT_S))
    return found


@pytest.fixture
def installed(story: Story, tmp_path: Path) -> Path:
    """A disk of one's own with the good update in slot B, to be booted next."""
    disk = tmp_path / "disk.img"
    subprocess.run(["cp", "--sparse=always", story.disk, disk], check=True)
    return disk


def test_forged_updates_are_refused_and_nothing_is_changed(story: Story) -> None:
    assert all(story.refused.values()), story.refused
    assert "signature" in story.refused["another key"].lower() or "verify" in story.refused["another key"].lower()


def test_an_update_that_cannot_infer_falls_back_by_itself_and_is_not_tried_again(story: Story) -> None:
    assert story.slots == "ABBBA"
    slots = {slot["bootname"]: slot for slot in story.standing["slots"]}
    assert slots["A"]["confirmed"]
    assert slots["A"]["booted"]
    assert not slots["B"]["bootable"]
    trial = story.standing["trial"]
    assert (trial["slot"], trial["version"], trial["over"]) == ("B", BAD, True)


def test_a_good_update_is_taken_and_its_newer_state_does_not_break_the_older_version(
    story: Story, installed: Path, tested: ImageUnderTest, tmp_path: Path
) -> None:
    with ImageMachine(tested.architecture, qemu.disk(installed), tmp_path / "run") as machine:
        machine.wait_confirmed("B")
        machine.wait_ready()
        assert machine.boots() == "B"
        assert machine.slot() == "B"
        assert GOOD in machine.check("magnitude --version", timeout_s=BOOT_S)
        assert machine.check(f"cat {KEPT}") == "kept\n"
        assert machine.check("cat /etc/machine-id") == story.machine_id
        assert measured(machine)["schema"] == SCHEMA + 1
        newer = machine.check(f"sha256sum <{MEASURED}")
        # Back to the one before, as an admin does it. What it cannot read it leaves alone.
        machine.check("rauc status mark-active other", timeout_s=BOOT_S)
        assert machine.reboot() == "BA"
        machine.wait_confirmed("A")
        machine.wait_ready()
        assert machine.check("cat /etc/machine-id") == story.machine_id
        # For the newer version, should it come back; its own is in use again.
        assert machine.check(f"sha256sum <{MEASURED}.schema-{SCHEMA + 1}") == newer
        assert measured(machine)["schema"] == SCHEMA


def test_a_slot_that_is_whole_passes_with_the_patience_that_broken_ones_get(
    installed: Path, tested: ImageUnderTest, tmp_path: Path
) -> None:
    """Without this one the next could be true because the check gave up too early."""
    hurry_slot(installed, SLOT_MIB, DATA_MIB)
    with ImageMachine(tested.architecture, qemu.disk(installed), tmp_path / "run") as machine:
        machine.wait_confirmed("B")
        assert machine.boots() == "B"


@pytest.mark.parametrize("kind", BROKEN)
def test_a_slot_that_is_broken_in_any_way_is_given_up_after_three_boots(
    kind: str, installed: Path, story: Story, tested: ImageUnderTest, tmp_path: Path
) -> None:
    break_slot(installed, kind, SLOT_MIB, DATA_MIB)
    with ImageMachine(tested.architecture, qemu.disk(installed), tmp_path / "run") as machine:
        assert machine.wait_boots(4, within_s=4 * BOOT_S) == "BBBA"
        machine.wait_confirmed("A")
        machine.wait_ready()
        assert machine.boots() == "BBBA"
        assert machine.check("cat /etc/machine-id") == story.machine_id
        assert machine.check(f"cat {KEPT}") == "kept\n"
