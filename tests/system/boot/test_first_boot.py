"""A device that boots for the first time with files on its boot partition, which here is a folder."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import rootfs
import yaml
from booted_board import CONFIG, PLAIN, READY_S, SERVICE, Board
from nspawn import until

from magnitude.units.layout import Installation, plan
from magnitude.units.shipped import read_shipped, shipped_folder

pytestmark = pytest.mark.system

FOLDER = "/boot/firmware/magnitude"
STATE = "/var/lib/magnitude-device"
FIRST_BOOT, GROW, SELF_TEST = (f"magnitude-{name}.service" for name in ("first-boot", "grow-data", "self-test"))
PSK = "correct-horse-battery"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGtra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tr me@desk"
OWN = PLAIN | {"server": {"max_request_bytes": 654321}}


def files() -> dict[str, str]:
    """The boot partition as somebody prepared it, and what an image has besides the units of a machine."""
    windows = yaml.safe_dump(OWN).replace("\n", "\r\n")
    found = {
        f"{FOLDER}/MAGNITUDE.YAML": f"\ufeff{windows}",
        f"{FOLDER}/wifi.yaml": f"ssid: Workshop\npsk: {PSK}\ncountry: DE\n",
        f"{FOLDER}/authorized_keys": f"{KEY}\n",
        f"{FOLDER}/other.nmconnection": f"[connection]\ntype=vpn\n[vpn]\npassword={PSK}\n",
        "/etc/systemd/system/multi-user.target.d/90-test.conf": f"[Unit]\nWants={FIRST_BOOT} {GROW} {SELF_TEST}\n",
    }
    installation = Installation(
        systemd_version=252, prefix="/usr/local", command=f"{rootfs.PREFIX}/bin/magnitude", image=True
    )
    for file in plan(read_shipped(shipped_folder()), installation):
        if file.path.endswith((FIRST_BOOT, GROW, SELF_TEST, "60-self-test.conf")):
            found[file.path] = file.text
    return found


@pytest.fixture(scope="module")
def board(root: Path) -> Iterator[Board]:
    with Board(root, files=files()) as board:
        board.wait_ready()
        yield board


def names(board: Board) -> set[str]:
    return {path.name for path in board.path(FOLDER).iterdir()}


def issue(board: Board) -> str:
    path = board.path("/run/magnitude-device/issue")
    return path.read_text() if path.exists() else ""


def test_what_lay_on_the_partition_is_in_place_before_the_service_starts(board: Board) -> None:
    assert board.show(FIRST_BOOT, "Result") == "success"
    done = int(board.show(FIRST_BOOT, "InactiveEnterTimestampMonotonic"))
    assert 0 < done <= int(board.show(SERVICE, "ExecMainStartTimestampMonotonic"))
    assert yaml.safe_load(board.path(CONFIG).read_text()) == OWN
    assert "max_request_bytes: 654321" in board.run("magnitude", "config", "show").text
    assert board.path(f"{STATE}/login-keys/root").read_text() == f"{KEY}\n"
    profile = board.path("/var/lib/NetworkManager/system-connections/magnitude-wifi.nmconnection")
    assert PSK in profile.read_text()
    assert stat.S_IMODE(profile.stat().st_mode) == 0o600
    config = board.run("stat", "--format=%a %G", CONFIG).text.split()
    assert config == ["640", "magnitude"]


def test_the_folder_shows_what_became_of_each_file(board: Board) -> None:
    assert names(board) == {
        "MAGNITUDE.YAML.taken",
        "wifi.yaml.taken",
        "authorized_keys.taken",
        "other.nmconnection",
        "other.nmconnection.rejected.txt",
    }
    assert (board.path(FOLDER) / "wifi.yaml.taken").read_bytes() == b""


def test_no_passphrase_is_in_the_journal_of_the_device(board: Board) -> None:
    journal = board.journal()
    assert "wifi.yaml was taken over" in journal
    assert PSK not in journal


def test_the_device_keeps_the_id_of_its_first_boot(board: Board) -> None:
    assert board.path(f"{STATE}/machine-id").read_text() == board.path("/etc/machine-id").read_text()


def test_where_no_data_partition_is_mounted_nothing_is_grown(board: Board) -> None:
    assert board.show(GROW, "ConditionResult") == "no"


def test_the_next_run_takes_nothing_again(board: Board) -> None:
    text = yaml.safe_dump(OWN | {"log": {"level": "debug"}})
    board.write(CONFIG, text)
    board.run("systemctl", "start", FIRST_BOOT)
    assert board.path(CONFIG).read_text() == text


def test_console_and_prompt_say_how_the_service_is(board: Board) -> None:
    until(
        lambda: ": ready" in issue(board) or "ready." in issue(board),
        within_s=READY_S,
        what="it says that it is ready",
    )
    assert "other.nmconnection" in issue(board)
    board.run("systemctl", "stop", "magnitude.socket", SERVICE)
    until(lambda: "does not run" in issue(board), within_s=READY_S, what="it says that it does not run")
    board.write(CONFIG, "server: nonsense\n")
    board.run("systemctl", "start", SERVICE, check=False)
    until(lambda: "configuration" in issue(board), within_s=READY_S, what="it says what is wrong")
    board.write(CONFIG, yaml.safe_dump(OWN))
    board.run("systemctl", "start", SERVICE)
    until(lambda: "ready." in issue(board), within_s=READY_S, what="it says that it is ready again")
    assert "Magnitude" in board.run("journalctl", "--unit", SELF_TEST, "--no-pager").text


def test_the_units_have_no_fault_that_systemd_knows(board: Board) -> None:
    assert board.run("systemd-analyze", "verify", "--man=no", FIRST_BOOT, GROW, SELF_TEST).text == ""
