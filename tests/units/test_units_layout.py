from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from units_tree import SHIPPED, planned

from magnitude.errors import ConfigError
from magnitude.units.layout import enabled

BASE = {
    "magnitude/magnitude-grant-cpufreq",
    "magnitude/optional/cloud.conf",
    "magnitude/optional/hardware-counters.conf",
    "magnitude/optional/lan.conf",
    "systemd/system-preset/90-magnitude.preset",
    "systemd/system/magnitude-permissions.path",
    "systemd/system/magnitude-permissions.service",
    "systemd/system/magnitude.service",
    "systemd/system/magnitude.socket",
    "sysusers.d/magnitude.conf",
    "tmpfiles.d/magnitude.conf",
    "udev/rules.d/90-magnitude.rules",
}
SERVICE = "magnitude.service"
DROP_INS = "systemd/system/magnitude.service.d/"
SINCE_253 = {f"{DROP_INS}253-notify-reload.conf"}
SINCE_254 = {
    f"{DROP_INS}254-{name}.conf"
    for name in ("delegate-subgroup", "descriptor-store", "memory-pressure", "restart-steps")
}


@pytest.mark.parametrize(
    ("version", "drop_ins"),
    [(252, set()), (253, SINCE_253), (254, SINCE_253 | SINCE_254), (257, SINCE_253 | SINCE_254)],
)
def test_drop_ins_are_chosen_by_the_version_of_systemd(version: int, drop_ins: set[str]) -> None:
    assert set(planned(version)) == BASE | drop_ins


def test_an_image_gets_everything_that_a_machine_gets_and_more() -> None:
    more = set(planned(257, image=True)) - set(planned(257))
    assert more == {
        "magnitude/magnitude-boot-check-failed",
        "magnitude/magnitude-last-resort",
        "magnitude/magnitude-stranded",
        "/etc/issue.d/50-magnitude.issue",
        "/etc/ssh/sshd_config.d/10-magnitude.conf",
        "NetworkManager/conf.d/50-magnitude.conf",
        "systemd/journald.conf.d/50-magnitude.conf",
        "systemd/system.conf.d/50-magnitude-watchdog.conf",
        "systemd/system-preset/90-magnitude-image.preset",
        "systemd/system/basic.target.d/50-magnitude.conf",
        "systemd/system/emergency.service.d/50-magnitude.conf",
        "systemd/system/magnitude-boot-check.service",
        "systemd/system/magnitude-data.service",
        "systemd/system/magnitude-first-boot.service",
        "systemd/system/magnitude-grow-data.service",
        "systemd/system/magnitude-last-resort-clear.service",
        "systemd/system/magnitude-last-resort-clear.timer",
        "systemd/system/magnitude-self-test.service",
        "systemd/system/magnitude.service.d/50-last-resort.conf",
        "systemd/system/magnitude.service.d/60-self-test.conf",
        "systemd/system/rescue.service.d/50-magnitude.conf",
        "systemd/timesyncd.conf.d/50-magnitude.conf",
    }


def test_an_older_systemd_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError) as error:
        planned(251)
    assert "251" in error.value.message
    assert "magnitude serve" in error.value.hint


def test_units_start_the_command_of_this_installation_and_its_helpers() -> None:
    files = planned(254, image=True, prefix="/usr/local", command="/opt/m/bin/magnitude")
    for file in files.values():
        assert "/usr/bin/magnitude" not in file.text, file.path
        assert "/usr/lib/magnitude" not in file.text, file.path
    service = files["systemd/system/magnitude.service"].text
    assert "ExecStart=/opt/m/bin/magnitude serve" in service
    assert "ExecStartPre=+-/usr/local/lib/magnitude/magnitude-grant-cpufreq" in service


def test_helpers_can_be_executed_and_nothing_else() -> None:
    executable = {path for path, file in planned(257, image=True).items() if file.mode & 0o111}
    assert executable == {
        "magnitude/magnitude-boot-check-failed",
        "magnitude/magnitude-grant-cpufreq",
        "magnitude/magnitude-last-resort",
        "magnitude/magnitude-stranded",
    }


def test_an_installation_in_a_home_folder_is_visible_to_the_service() -> None:
    drop_in = planned(252, command_in_home=True)[f"{DROP_INS}installed-in-home.conf"]
    assert "ProtectHome=read-only" in drop_in.text


@pytest.mark.parametrize("path", ["relative/magnitude", "/opt/my apps/magnitude", "/opt/50%/magnitude", "/opt/$x/m"])
def test_a_path_that_systemd_would_misread_is_refused(path: str) -> None:
    with pytest.raises(ConfigError):
        planned(252, command=path)


@given(st.integers(252, 400), st.booleans())
def test_a_newer_systemd_never_loses_a_file(version: int, image: bool) -> None:
    assert set(planned(version, image=image)) <= set(planned(version + 1, image=image))


def test_every_shipped_file_is_installed_somewhere() -> None:
    assert len([file for file in planned(999, image=True).values() if not file.link_to]) == len(SHIPPED)


def test_units_that_ask_for_it_start_with_the_system() -> None:
    starting = {(folder, path.rpartition("/")[2]) for folder, path in enabled(planned(257).values())}
    assert starting == {("multi-user.target.wants", SERVICE), ("sockets.target.wants", "magnitude.socket")}
    more = {path.rpartition("/")[2] for _, path in enabled(planned(257, image=True).values())}
    assert more >= {SERVICE, "magnitude-first-boot.service", "magnitude-self-test.service"}
    assert "magnitude-last-resort-clear.timer" not in more
