from __future__ import annotations

import grp
import os
import subprocess
from pathlib import Path

import pytest

from magnitude.units.shipped import shipped_folder

GRANT = shipped_folder() / "libexec/magnitude-grant-cpufreq"
LAST_RESORT = shipped_folder() / "image/libexec/magnitude-last-resort"
STRANDED = shipped_folder() / "image/libexec/magnitude-stranded"
OWN_GROUP = grp.getgrgid(os.getgid()).gr_name
HOUR_S = 3600


def grant(sysfs: Path, group: str = OWN_GROUP) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", str(GRANT), str(sysfs), group], capture_output=True, text=True)


def policy(sysfs: Path, number: int) -> Path:
    folder = sysfs / f"devices/system/cpu/cpufreq/policy{number}"
    folder.mkdir(parents=True)
    for name in ("scaling_max_freq", "scaling_min_freq", "scaling_governor"):
        (folder / name).write_text("1\n")
        (folder / name).chmod(0o644)
    return folder


def test_the_group_may_write_the_upper_limit_of_every_policy_and_nothing_else(tmp_path: Path) -> None:
    folders = [policy(tmp_path, 0), policy(tmp_path, 4)]
    done = grant(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for folder in folders:
        modes = {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()}
        assert modes == {"scaling_max_freq": 0o664, "scaling_min_freq": 0o644, "scaling_governor": 0o644}


def test_a_policy_that_came_back_is_opened_by_the_next_run(tmp_path: Path) -> None:
    limit = policy(tmp_path, 0) / "scaling_max_freq"
    grant(tmp_path)
    limit.unlink()
    limit.write_text("1\n")
    limit.chmod(0o644)
    assert grant(tmp_path).returncode == 0
    assert limit.stat().st_mode & 0o777 == 0o664


def test_a_machine_without_cpufreq_is_none_the_worse(tmp_path: Path) -> None:
    assert grant(tmp_path).returncode == 0
    (tmp_path / "devices/system/cpu/cpufreq").mkdir(parents=True)
    assert grant(tmp_path).returncode == 0


def test_a_limit_that_cannot_be_opened_is_a_failure_that_spares_the_others(tmp_path: Path) -> None:
    policy(tmp_path, 0)
    done = grant(tmp_path, group="no-such-group-here")
    assert done.returncode == 1
    assert "no-such-group-here" in done.stderr


class Device:
    """A root with a clock, and a systemctl that notes what it is asked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked = root / "asked"
        self.marker = root / "var/lib/magnitude-last-resort/rebooted"
        (root / "proc").mkdir(parents=True)
        (root / "bin").mkdir()
        systemctl = root / "bin/systemctl"
        systemctl.write_text(
            f'#!/bin/sh\necho "$*" >>{self.asked}\n'
            f"case $1 in is-active) cat {root}/state ;; show) cat {root}/since ;; esac\n"
        )
        systemctl.chmod(0o755)
        self.at(60)

    def at(self, uptime_s: int) -> None:
        (self.root / "proc/uptime").write_text(f"{uptime_s}.25 1.00\n")

    def run(self, action: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", str(LAST_RESORT), action, str(self.root)],
            env={"PATH": f"{self.root}/bin:{os.environ['PATH']}", **environ},
            capture_output=True,
            text=True,
        )

    def fail(self, times: int, *, every_s: int = 10, result: str = "exit-code", status: str = "1") -> None:
        for _ in range(times):
            uptime = int((self.root / "proc/uptime").read_text().split(".")[0])
            self.at(uptime + every_s)
            done = self.run("ended", SERVICE_RESULT=result, EXIT_STATUS=status)
            assert done.returncode == 0, done.stderr

    def boot(self) -> None:
        failures = self.root / "run/magnitude-last-resort/failures"
        failures.unlink(missing_ok=True)
        self.asked.unlink(missing_ok=True)
        self.at(60)

    @property
    def reboots(self) -> int:
        return self.asked.read_text().count("reboot") if self.asked.exists() else 0


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path / "device")


def test_the_tenth_failure_within_an_hour_reboots(device: Device) -> None:
    device.fail(9)
    assert device.reboots == 0
    device.fail(1)
    assert device.reboots == 1
    assert device.marker.exists()


def test_it_reboots_once_and_not_in_a_loop(device: Device) -> None:
    device.fail(10)
    device.boot()
    device.fail(50)
    assert device.reboots == 0


def test_failures_far_apart_are_no_series(device: Device) -> None:
    device.fail(30, every_s=HOUR_S // 5)
    assert device.reboots == 0


@pytest.mark.parametrize(("result", "status"), [("success", "0"), ("exit-code", "78")])
def test_a_stop_and_a_broken_configuration_are_no_reason_to_reboot(device: Device, result: str, status: str) -> None:
    device.fail(30, result=result, status=status)
    assert device.reboots == 0


def test_where_it_cannot_be_written_down_there_is_no_reboot(device: Device) -> None:
    (device.root / "var").write_text("not a folder: nothing can be written below it")
    for _ in range(10):
        done = device.run("ended", SERVICE_RESULT="watchdog", EXIT_STATUS="ABRT")
    assert done.returncode == 1
    assert device.reboots == 0


@pytest.mark.parametrize(
    ("state", "active_s", "allowed"),
    [("active", HOUR_S, True), ("active", HOUR_S - 1, False), ("failed", HOUR_S, False)],
)
def test_an_hour_of_good_service_allows_the_next_reboot(
    device: Device, state: str, active_s: int, allowed: bool
) -> None:
    device.fail(10)
    device.boot()
    device.at(10_000)
    (device.root / "state").write_text(f"{state}\n")
    (device.root / "since").write_text(f"{(10_000 - active_s) * 1_000_000}\n")
    assert device.run("clear").returncode == 0
    assert device.marker.exists() != allowed
    device.asked.unlink()
    device.fail(10)
    assert device.reboots == (1 if allowed else 0)


def stranded(root: Path, words: str) -> tuple[str, list[str]]:
    """What it says at the end of a boot with these words on the kernel's command line, and what it asked for."""
    asked = root / "asked"
    (root / "proc").mkdir(parents=True)
    (root / "proc/cmdline").write_text(f"{words}\n")
    for name in ("bin/systemctl", "bin/sleep", "usr/lib/systemd/systemd-sulogin-shell"):
        program = root / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\necho "{program.name} $*" >>{asked}\necho "data.mount loaded failed"\n')
        program.chmod(0o755)
    done = subprocess.run(
        ["sh", str(STRANDED), str(root)],
        env={"PATH": f"{root}/bin:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout, asked.read_text().splitlines()


def test_a_system_that_cannot_come_up_says_what_has_failed_and_starts_anew_after_a_pause(tmp_path: Path) -> None:
    said, asked = stranded(tmp_path, "root=PARTLABEL=root-b ro rauc.slot=B quiet")
    assert "data.mount loaded failed" in said
    assert asked[-2:] == ["sleep 120", "systemctl reboot --force"]


@pytest.mark.parametrize("words", ["rescue", "systemd.unit=emergency.target", "single", "1"])
def test_who_asked_for_a_shell_on_the_kernels_command_line_gets_it(tmp_path: Path, words: str) -> None:
    _, asked = stranded(tmp_path, f"root=PARTLABEL=root-a {words} rauc.slot=A")
    assert asked == ["systemd-sulogin-shell emergency"]
