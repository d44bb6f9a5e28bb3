from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from units_tree import SHIPPED, placed, planned

from magnitude.board.cap_record import RECORD_NAME
from magnitude.cli.first_boot import ISSUE
from magnitude.config import ServerSettings
from magnitude.config.address import parse_listen
from magnitude.firstboot.device import Device
from magnitude.firstboot.grow import GROW_S
from magnitude.firstboot.host_keys import KEY_NAME
from magnitude.paths import find_paths
from magnitude.supervise.cgroup_leaf import CONTROLLERS, SERVICE_LEAF
from magnitude.supervise.exit_status import EXIT_CONFIG
from magnitude.units.host import parse_version
from magnitude.units.layout import ISSUE_LINK

UNIT_FILE = re.compile(r".*\.(service|socket|path|timer|conf|preset|rules)")
EXPOSURE_GOAL = 2.0
# What a unit has to do may need more; then it is named here with the reason, and with the figure that it must keep.
MORE_EXPOSED = {
    "magnitude-data.service": 2.5,  # runs while file systems are being mounted, so without mounts of its own
    "magnitude-first-boot.service": 5.0,  # mounts the boot partition anew, which private mounts would hide
    "magnitude-grow-data.service": 2.5,  # writes a partition table: raw devices, and CAP_SYS_ADMIN
}


def directives(text: str) -> dict[str, list[str]]:
    """Each key of a unit file with all its values, in order."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


SERVICE = directives(SHIPPED["magnitude.service"])
SOCKET = directives(SHIPPED["magnitude.socket"])
FIRST_BOOT = directives(SHIPPED["image/magnitude-first-boot.service"])


@pytest.mark.parametrize("name", [name for name in SHIPPED if UNIT_FILE.fullmatch(name)])
def test_every_directive_has_its_reason_above_it(name: str) -> None:
    lines = SHIPPED[name].splitlines()
    bare = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if line and not line.startswith(("#", "[")) and not before.startswith("#")
    ]
    assert not bare


@pytest.mark.parametrize(
    "name", [name for name in SHIPPED if name.endswith((".service", ".socket", ".path", ".timer"))]
)
def test_unit_files_are_plain_ini_files(name: str) -> None:
    parser = configparser.RawConfigParser(strict=False, comment_prefixes="#", delimiters="=")
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(SHIPPED[name])
    assert "Unit" in parser.sections()
    assert parser["Unit"]["Description"]


def test_the_unix_socket_outlives_the_services_run_folder() -> None:
    (unix,) = (address for address in SOCKET["ListenStream"] if address.startswith("/"))
    (folder,) = SERVICE["RuntimeDirectory"]
    assert not Path(unix).is_relative_to(Path("/run") / folder)


def test_the_sockets_are_where_clients_look() -> None:
    listening = set(SOCKET["ListenStream"])
    assert str(find_paths({}, uid=0).unix_socket) in listening
    assert str(parse_listen(ServerSettings().listen)) in listening


def test_memory_high_is_unset_and_memory_max_set() -> None:
    assert "MemoryHigh" not in SERVICE
    assert SERVICE["MemoryMax"] == ["85%"]


def test_events_of_udev_reach_the_service() -> None:
    (families,) = SERVICE["RestrictAddressFamilies"]
    assert "AF_NETLINK" in families.split()
    assert "PrivateNetwork" not in SERVICE


def test_only_a_broken_configuration_ends_the_restarts() -> None:
    assert SERVICE["Restart"] == ["always"]
    assert SERVICE["StartLimitIntervalSec"] == ["0"]
    assert SERVICE["RestartPreventExitStatus"] == [str(EXIT_CONFIG)]


def test_unit_and_service_agree_on_the_control_groups() -> None:
    assert SERVICE["Delegate"] == [" ".join(CONTROLLERS)]
    assert directives(SHIPPED["magnitude.service.d/254-delegate-subgroup.conf"])["DelegateSubgroup"] == [SERVICE_LEAF]
    assert SERVICE["ProtectControlGroups"] == ["no"]


def test_the_configuration_is_checked_before_the_service_hears_of_it() -> None:
    check, signal = SERVICE["ExecReload"]
    assert check.endswith("magnitude config check")
    assert "kill -HUP" in signal
    emptied, check = directives(SHIPPED["magnitude.service.d/253-notify-reload.conf"])["ExecReload"]
    assert emptied == ""
    assert check.endswith("magnitude config check")


def test_clock_limits_are_put_back_after_every_end_by_the_services_own_permissions() -> None:
    (restore,) = (command for command in SERVICE["ExecStopPost"] if "restore-clocks" in command)
    assert restore.startswith("-/")
    assert f"/{RECORD_NAME}" in restore
    # Between a crash and the next start the note is kept.
    assert SERVICE["RuntimeDirectoryPreserve"] == ["restart"]


@pytest.mark.parametrize("name", [name for name in SHIPPED if UNIT_FILE.fullmatch(name)])
def test_nothing_waits_for_the_time_to_be_known(name: str) -> None:
    """A board without a battery and without a network has none, and serves all the same."""
    assert not [line for line in SHIPPED[name].splitlines() if not line.startswith("#") and "time-s" in line]


def test_a_device_of_ours_lets_nobody_in_by_a_password() -> None:
    settings = dict(
        line.split(" ", 1)
        for line in SHIPPED["image/sshd_config.d/10-magnitude.conf"].splitlines()
        if line and line[0] != "#"
    )
    assert settings["PasswordAuthentication"] == settings["KbdInteractiveAuthentication"] == "no"
    assert settings["PermitRootLogin"] == "prohibit-password"
    device = Device()
    assert settings["HostKey"] == str(device.host_keys / KEY_NAME)
    assert settings["AuthorizedKeysFile"].split()[0] == str(device.login_keys.with_name("%u"))


def test_the_network_manager_looks_where_connections_are_put() -> None:
    assert f"path={Device().connections}" in SHIPPED["image/NetworkManager/50-magnitude.conf"].splitlines()


def test_what_the_device_says_is_where_agetty_looks() -> None:
    assert planned(257, image=True)[ISSUE_LINK].link_to == str(ISSUE)
    (folder,) = directives(SHIPPED["image/magnitude-self-test.service"])["RuntimeDirectory"]
    assert Path("/run") / folder == ISSUE.parent


def test_whatever_needs_the_first_boot_comes_after_it() -> None:
    (before,) = (" ".join(values) for key, values in FIRST_BOOT.items() if key == "Before")
    assert {
        "magnitude.service",
        "ssh.service",
        "sshd.service",
        "NetworkManager.service",
        "network-pre.target",
    } <= set(before.split())
    # It may take its time, and may fail: nothing of it is required.
    assert int(FIRST_BOOT["TimeoutStartSec"][0].removesuffix("s")) <= 60
    assert not [name for name in SHIPPED if "Requires=magnitude-first-boot" in SHIPPED[name]]


def test_the_journal_is_capped_on_an_image_only() -> None:
    cap = "systemd/journald.conf.d/50-magnitude.conf"
    assert cap not in planned(257)
    assert "SystemMaxUse=" in planned(257, image=True)[cap].text


def here() -> int | None:
    systemctl = shutil.which("systemctl")
    if systemctl is None or shutil.which("systemd-analyze") is None:
        return None
    return parse_version(subprocess.run([systemctl, "--version"], capture_output=True, text=True).stdout)


needs_systemd = pytest.mark.skipif(here() is None, reason="systemd-analyze is not installed on this machine")


def test_growing_a_file_system_ends_by_itself_before_systemd_ends_it() -> None:
    (timeout,) = directives(SHIPPED["image/magnitude-grow-data.service"])["TimeoutStartSec"]
    assert 60 * float(timeout.removesuffix("min")) > GROW_S


@needs_systemd
@pytest.mark.parametrize("image", [False, True], ids=["machine", "image"])
def test_systemd_finds_nothing_wrong_with_the_units(image: bool, tmp_path: Path) -> None:
    folder = placed(tmp_path / "prefix", here() or 0, image=image)
    units = [str(file) for file in sorted(folder.iterdir()) if file.is_file()]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units], capture_output=True, text=True
    )
    about_ours = [line for line in done.stderr.splitlines() if "magnitude" in line]
    assert (done.returncode, about_ours) == (0, [])


@needs_systemd
def test_services_are_exposed_no_more_than_the_goal(tmp_path: Path) -> None:
    folder = placed(tmp_path / "prefix", here() or 0, image=True)
    figures = {unit.name: exposure(unit) for unit in sorted(folder.glob("*.service"))}
    assert {"magnitude.service", *MORE_EXPOSED} <= set(figures)
    above = {unit: figure for unit, figure in figures.items() if figure > MORE_EXPOSED.get(unit, EXPOSURE_GOAL)}
    assert not above


@needs_systemd
@pytest.mark.parametrize("name", ["cloud.conf", "hardware-counters.conf"])
def test_an_optional_drop_in_costs_little_of_the_hardening(name: str, tmp_path: Path) -> None:
    folder = placed(tmp_path / "prefix", here() or 0)
    before = exposure(folder / "magnitude.service")
    drop_ins = folder / "magnitude.service.d"
    drop_ins.mkdir(exist_ok=True)
    shutil.copy(tmp_path / "prefix/lib/magnitude/optional" / name, drop_ins)
    assert before < exposure(folder / "magnitude.service") <= EXPOSURE_GOAL


def exposure(unit: Path) -> float:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d+)", done.stdout)
    assert found, done.stdout
    return float(found[1])
