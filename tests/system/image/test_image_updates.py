"""Updates of a running image: a good one is taken, one that cannot infer is not. Takes minutes: not part of CI.

pytest -m on_demand tests/system/image/test_image_updates.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from image_machine import BOOT_S, ImageMachine, extra_disk, overlay_disk
from tested_image import GOOD, Tested

pytestmark = [pytest.mark.system, pytest.mark.on_demand]


@pytest.fixture
def machine(tested: Tested, tmp_path: Path) -> Iterator[ImageMachine]:
    """A machine that serves, with the good update on its second disk and the bad one on its third."""
    disk = [
        *overlay_disk(tested.image, tmp_path / "disk.qcow2"),
        *extra_disk(tested.good, 0),
        *extra_disk(tested.bad, 1),
    ]
    with ImageMachine(tested.architecture, disk, tmp_path / "run") as machine:
        machine.wait_ready()
        machine.wait_confirmed("A")
        yield machine


def status(machine: ImageMachine) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(machine.check("rauc status --output-format=json", timeout_s=BOOT_S))
    return found


def test_a_good_update_is_taken_and_confirmed(machine: ImageMachine, tested: Tested) -> None:
    state = "/var/lib/magnitude/kept"
    machine.check(f"echo kept >{state}")
    before = status(machine)
    assert before["booted"] == "A"
    machine.install(tested.good, 0)
    assert machine.slot() == "A"  # until the next boot
    assert machine.reboot() == "AB"
    machine.wait_ready()
    machine.wait_confirmed("B")
    assert machine.slot() == status(machine)["booted"] == "B"
    assert GOOD in machine.check("magnitude --version")
    assert machine.check(f"cat {state}") == "kept\n"
    # It is the one that is booted from now on.
    assert machine.reboot() == "ABB"


def test_an_update_that_cannot_infer_falls_back_by_itself(machine: ImageMachine, tested: Tested) -> None:
    machine.install(tested.bad, 1)
    machine.reboot()
    assert machine.wait_boots(5, within_s=4 * BOOT_S) == "ABBBA"
    machine.wait_ready()
    machine.wait_confirmed("A")
    assert machine.slot() == "A"
    # It stays there: a further boot does not try the bad one again.
    assert machine.reboot() == "ABBBAA"


def test_a_bundle_with_another_signature_is_refused(machine: ImageMachine, tested: Tested) -> None:
    size = tested.good.stat().st_size
    machine.check(f"head -c {size} /dev/disk/by-id/virtio-extra0 >/data/update.raucb")
    # One byte of the content: found by the hash tree when it is read, at the latest.
    machine.check(f"printf x | dd of=/data/update.raucb bs=1 seek={size // 2} conv=notrunc status=none")
    assert machine.run("rauc install /data/update.raucb", timeout_s=BOOT_S).status
    # One of the signature at the end.
    machine.check(f"printf x | dd of=/data/update.raucb bs=1 seek={size - 300} conv=notrunc status=none")
    refused = machine.run("rauc info /data/update.raucb", timeout_s=BOOT_S)
    assert refused.status
    assert machine.reboot() == "AA"
