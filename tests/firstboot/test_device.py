from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec
import pytest
from parcels import KEYS, PSK, WIFI, Asked, Card, key_line

from magnitude.firstboot.boot_partition import find_mount
from magnitude.firstboot.device import Device, prepare, read_facts
from magnitude.firstboot.host_keys import KEY_NAME
from magnitude.units.host import run_quietly

RUNNING = "0123456789abcdef" * 2


def booted(card: Card) -> Device:
    card.device.machine_id.parent.mkdir(parents=True, exist_ok=True)
    card.device.machine_id.write_text(f"{RUNNING}\n")
    return card.device


def test_a_boot_makes_the_device_itself(card: Card) -> None:
    device = booted(card)
    card.put("authorized_keys", KEYS)
    assert prepare(device, run_quietly) == []
    assert (device.host_keys / KEY_NAME).exists()
    assert device.own_id.read_text() == f"{RUNNING}\n"
    assert device.own_id.stat().st_mode & 0o777 == 0o600
    assert device.login_keys.read_text() == KEYS


def test_the_boot_loader_is_told_the_id_on_a_partition_that_is_mounted(tmp_path: Path) -> None:
    card = Card(tmp_path / "device", mount="rw")
    prepare(booted(card), run_quietly)
    assert (card.partition / "machine-id.env").read_text() == f"machine_id={RUNNING}\n"


@pytest.fixture
def uboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that fw_setenv and fw_printenv, small programs here, keep the environment in."""
    environment = tmp_path / "environment"
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, script in (
        ("fw_setenv", f'echo "$1=$2" >>{environment}'),
        ("fw_printenv", f'sed -n "s/^$2=//p" {environment}'),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    environment.write_text("BOOT_ORDER=A B\n")
    return environment


def test_u_boot_is_told_the_id_once(card: Card, uboot: Path) -> None:
    device = booted(card)
    prepare(device, run_quietly)
    assert "MACHINE_ID" not in uboot.read_text()  # this device has another boot loader
    device.uboot_config.write_text("/dev/mmcblk0 0x8000 0x8000\n")
    prepare(device, run_quietly)
    prepare(device, run_quietly)
    assert uboot.read_text() == f"BOOT_ORDER=A B\nMACHINE_ID={RUNNING}\n"


def test_a_u_boot_that_cannot_be_told_is_no_failure_of_the_boot(card: Card, uboot: Path) -> None:
    device = booted(card)
    device.uboot_config.write_text("/dev/mmcblk0 0x8000 0x8000\n")
    (uboot.parent / "bin/fw_setenv").write_text("#!/bin/sh\nexit 1\n")
    assert prepare(device, run_quietly) == []


def test_without_a_boot_partition_nothing_is_written_in_its_place(card: Card) -> None:
    prepare(booted(card), run_quietly)
    assert not (card.partition / "machine-id.env").exists()


def test_what_one_step_cannot_do_keeps_no_other_from_being_done(card: Card) -> None:
    device = booted(card)
    card.put("authorized_keys", KEYS)
    failed = prepare(device, Asked(keygen="no space left"))
    assert len(failed) == 1 and "no space left" in failed[0]
    assert device.login_keys.exists()
    assert device.own_id.exists()


def test_nothing_secret_is_logged(card: Card, caplog: pytest.LogCaptureFixture) -> None:
    card.put("wifi.yaml", WIFI)
    card.put("other.nmconnection", f"[connection]\ntype=wifi\n[wifi-security]\npsk={PSK}\n")
    card.put("magnitude.yaml", "server:\n  api_keys: mag-abcdefghijklmnop\n")
    card.put("authorized_keys", f"{key_line(comment='somebody')[:-30]}\n")
    with caplog.at_level(logging.DEBUG):
        prepare(booted(card), run_quietly)
    said = caplog.text
    assert "was not taken over" in said and "was taken over" in said
    for secret in (PSK, "mag-abc", RUNNING, "AAAA"):
        assert secret not in said


def test_what_could_not_be_put_in_place_is_not_called_taken_over(
    card: Card, caplog: pytest.LogCaptureFixture
) -> None:
    device = booted(card)
    card.put("authorized_keys", KEYS)
    device.login_keys.parent.parent.mkdir(parents=True, exist_ok=True)
    device.login_keys.parent.write_text("in the way")
    with caplog.at_level(logging.DEBUG):
        (failed,) = prepare(device, run_quietly)
    assert failed.startswith("authorized_keys: ")
    assert "taken over" not in caplog.text


def test_facts_say_what_was_rejected_and_whether_anybody_can_log_in(card: Card) -> None:
    device = booted(card)
    card.put("wifi.yaml", "ssid: x\n")
    prepare(device, run_quietly)
    facts = read_facts(device, unit="no-such.service")
    assert facts.rejected == ("wifi.yaml",)
    assert not facts.can_log_in
    card.put("authorized_keys", KEYS)
    prepare(device, run_quietly)
    assert read_facts(device, unit="no-such.service").can_log_in


def test_a_mount_that_lies_over_another_counts() -> None:
    lines = [
        "30 1 8:1 / /boot/firmware rw,relatime - vfat /dev/sda1 rw",
        "31 1 8:2 / /boot/firmware/deeper rw - ext4 /dev/sda2 rw",
        "32 1 8:3 / /boot/firmware ro,relatime - vfat /dev/sda3 ro",
    ]
    mount = find_mount("\n".join(lines), Path("/boot/firmware"))
    assert mount is not None
    assert (mount.device, mount.read_only) == ("8:3", True)
    assert find_mount("", Path("/boot/firmware")) is None


def test_places_of_a_device_are_on_its_data_partition() -> None:
    """What is kept there outlives an update; the rest is replaced by one."""
    device = Device()
    for path in (device.login_keys, device.country, device.own_id, device.host_keys, device.connections):
        assert path.is_relative_to("/var/lib"), path
    assert msgspec.structs.replace(device, state=Path("/x")).login_keys == Path("/x/login-keys/root")
