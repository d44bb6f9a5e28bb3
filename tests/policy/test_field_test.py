from __future__ import annotations

import shutil
import subprocess
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.policy.field_test import APPLICATION_ID, FieldTest, app_specific, arm_of, part_in

MACHINE = "00112233445566778899aabbccddeeff"
SHARES = st.floats(0.0, 1.0)


def test_a_device_is_known_by_an_id_that_is_not_the_machines() -> None:
    assert app_specific(MACHINE) == "978dd3a6c1464cc0854f452fe22310a6"
    assert app_specific(MACHINE.upper()) == app_specific(MACHINE)
    assert uuid.UUID(app_specific(MACHINE)).version == 4


def test_systemd_makes_the_same_id_of_this_machine() -> None:
    tool, own = shutil.which("systemd-id128"), Path("/etc/machine-id")
    if tool is None or not own.exists() or len(own.read_text().strip()) != 32:
        pytest.skip("this machine has no systemd-id128, or no id")
    said = subprocess.run(
        [tool, "machine-id", f"--app-specific={APPLICATION_ID.hex()}"], capture_output=True, text=True, check=True
    )
    assert app_specific(own.read_text().strip()) == said.stdout.strip()


@pytest.mark.parametrize("text", ["", "uninitialized", "0011", MACHINE + "00", "x" * 32])
def test_what_is_no_machine_id_takes_no_part(text: str) -> None:
    with pytest.raises(ValueError, match="hexadecimal"):
        app_specific(text)
    part = part_in("threads", 0.5, text)
    assert part.arm == ""
    assert "/etc/machine-id" in part.reason
    assert part_in("threads", 0.5, None) == part


def test_without_a_test_there_is_no_side() -> None:
    assert part_in("", 0.5, MACHINE) == FieldTest()


def test_a_device_stays_on_its_side_over_releases() -> None:
    assert [part_in(name, 0.5, MACHINE).arm for name in ("a", "b", "c", "d", "e", "f")] == [
        "off",
        "off",
        "off",
        "off",
        "on",
        "on",
    ]


@given(st.uuids(), st.text(min_size=1, max_size=20), SHARES, SHARES)
def test_a_larger_share_takes_nobody_back(device: uuid.UUID, test: str, one: float, other: float) -> None:
    low, high = sorted((one, other))
    if arm_of(device.hex, test, low) == "on":
        assert arm_of(device.hex, test, high) == "on"
    assert arm_of(device.hex, test, 0.0) == "off"
    assert arm_of(device.hex, test, 1.0) == "on"


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_so_many_of_a_fleet_are_on_and_another_test_draws_anew(share: float) -> None:
    fleet = [app_specific(f"{number:032x}") for number in range(4000)]
    first = [arm_of(device, "first", share) == "on" for device in fleet]
    second = [arm_of(device, "second", share) == "on" for device in fleet]
    assert sum(first) / len(fleet) == pytest.approx(share, abs=0.03)
    both = sum(one and other for one, other in zip(first, second, strict=True)) / len(fleet)
    assert both == pytest.approx(share * share, abs=0.03)
