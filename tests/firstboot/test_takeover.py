from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from parcels import KEYS, PSK, WIFI, Card, key_line

CONFIG = "log:\n  level: debug\n"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_lies_there_is_taken_over_and_renamed(card: Card) -> None:
    card.put("magnitude.yaml", CONFIG)
    card.put("wifi.yaml", WIFI)
    card.put("authorized_keys", KEYS)
    outcomes = card.boot()
    assert {name: outcome.result for name, outcome in outcomes.items()} == {
        "magnitude.yaml": "taken",
        "wifi.yaml": "taken",
        "authorized_keys": "taken",
    }
    assert card.names() == {"magnitude.yaml.taken", "wifi.yaml.taken", "authorized_keys.taken"}
    assert card.device.config.read_text() == CONFIG
    assert mode(card.device.config) == 0o640
    assert PSK.replace(" ", "\\s") in card.wifi.read_text()
    assert mode(card.wifi) == 0o600
    assert card.device.country.read_text() == "DE\n"
    assert card.device.login_keys.read_text() == KEYS
    assert mode(card.device.login_keys) == 0o644


def test_a_second_boot_finds_nothing_to_do(card: Card) -> None:
    card.put("magnitude.yaml", CONFIG)
    card.boot()
    card.device.config.write_text("log:\n  level: warning\n")
    assert card.boot() == {}
    assert "warning" in card.device.config.read_text()


def test_passphrases_do_not_stay_on_the_boot_partition(card: Card) -> None:
    card.put("wifi.yaml", WIFI)
    card.put("Home.nmconnection", f"[connection]\ntype=wifi\n[wifi]\nssid=Home\n[wifi-security]\npsk={PSK}\n")
    card.boot()
    assert (card.folder / "wifi.yaml.taken").read_bytes() == b""
    assert (card.folder / "Home.nmconnection.taken").read_bytes() == b""
    assert PSK in (card.device.connections / "home.nmconnection").read_text()
    assert PSK not in "".join(path.read_text() for path in card.device.state.rglob("*") if path.is_file())


def test_a_passphrase_that_a_power_cut_left_in_a_taken_file_is_wiped_at_the_next_boot(card: Card) -> None:
    card.put("wifi.yaml.taken", WIFI)
    card.boot()
    assert (card.folder / "wifi.yaml.taken").read_bytes() == b""


def test_a_wrong_file_stays_with_its_reason_beside_it(card: Card) -> None:
    card.put("magnitude.yaml", "server:\n  lisen: 0.0.0.0:80\n")
    outcome = card.boot()["magnitude.yaml"]
    assert outcome.result == "rejected"
    assert card.names() == {"magnitude.yaml", "magnitude.yaml.rejected.txt"}
    said = card.reason("magnitude.yaml")
    assert "line 2" in said
    assert "listen" in said
    assert said.count("\n") == said.count("\r\n") > 3
    assert not card.device.config.exists()


def test_the_reason_goes_once_the_file_is_right(card: Card) -> None:
    card.put("magnitude.yaml", "server: 1\n")
    card.boot()
    card.put("magnitude.yaml", CONFIG)
    card.boot()
    assert card.names() == {"magnitude.yaml.taken"}


def test_one_wrong_file_keeps_no_other_from_being_taken(card: Card) -> None:
    card.put("magnitude.yaml", "{")
    card.put("authorized_keys", KEYS)
    outcomes = card.boot()
    assert (outcomes["magnitude.yaml"].result, outcomes["authorized_keys"].result) == ("rejected", "taken")


def test_an_api_key_in_a_wrong_configuration_is_not_in_what_is_logged(card: Card) -> None:
    card.put("magnitude.yaml", "server:\n  api_keys: mag-abcdefghijklmnop\n")
    outcome = card.boot()["magnitude.yaml"]
    assert "mag-" not in outcome.detail
    assert outcome.detail == "line 2"


def test_files_from_windows_are_taken_whatever_their_case_and_marks(card: Card) -> None:
    card.put("MAGNITUDE.YAML", CONFIG.replace("\n", "\r\n").encode("utf-8-sig"))
    card.put("Wifi.yaml.txt", WIFI.encode("utf-16"))
    card.boot()
    assert card.device.config.read_text() == CONFIG
    assert card.wifi.exists()


def test_the_folder_itself_may_be_written_in_any_case(card: Card) -> None:
    card.folder.rename(card.partition / "MAGNITUDE")
    (card.partition / "MAGNITUDE" / "authorized_keys").write_text(KEYS)
    card.boot()
    assert card.device.login_keys.read_text() == KEYS


def test_two_files_for_one_purpose_are_not_both_taken(card: Card) -> None:
    card.put("magnitude.yaml", CONFIG)
    card.put("magnitude.yml", "log:\n  level: warning\n")
    outcomes = card.boot()
    assert [outcomes[name].result for name in ("magnitude.yaml", "magnitude.yml")] == ["taken", "rejected"]
    assert "magnitude.yaml" in card.reason("magnitude.yml")


@pytest.mark.parametrize("kind", ["link", "folder", "fifo"])
def test_what_is_no_file_is_refused_without_being_followed_or_waited_for(
    card: Card, kind: str, tmp_path: Path
) -> None:
    path = card.folder / "authorized_keys"
    target = tmp_path / "elsewhere"
    target.write_text(KEYS)
    {"link": lambda: path.symlink_to(target), "folder": path.mkdir, "fifo": lambda: os.mkfifo(path)}[kind]()
    assert card.boot()["authorized_keys"].result == "rejected"
    assert not card.device.login_keys.exists()


def test_a_huge_file_is_refused_and_not_read_to_its_end(card: Card) -> None:
    with card.put("wifi.yaml", b"").open("r+b") as file:
        file.truncate(1 << 40)  # sparse
    assert "larger" in card.boot()["wifi.yaml"].detail


def test_a_partition_that_is_not_there_costs_nothing(card: Card) -> None:
    card.folder.rmdir()
    assert card.boot() == {}
    card.partition.rmdir()
    assert card.boot() == {}


def test_a_partition_that_answers_with_garbage_costs_nothing(card: Card) -> None:
    card.folder.rmdir()
    card.folder.write_bytes(b"\xde\xad")  # a damaged directory reads as a file
    assert card.boot() == {}


def test_on_a_partition_that_stays_read_only_each_file_is_taken_once(tmp_path: Path) -> None:
    card = Card(tmp_path / "device", mount="ro")
    card.put("magnitude.yaml", CONFIG)
    # A folder in the way of the new name: the rename fails, as it does on a card whose lock is on.
    (card.folder / "magnitude.yaml.taken" / "in the way").mkdir(parents=True)
    first = card.boot()["magnitude.yaml"]
    assert (first.result, bool(first.detail)) == ("finished", True)
    card.device.config.write_text("log:\n  level: warning\n")
    card.boot()
    assert "warning" in card.device.config.read_text()
    card.put("magnitude.yaml", "log:\n  level: error\n")
    card.boot()
    assert "error" in card.device.config.read_text()


def test_a_read_only_partition_is_opened_for_the_moment_of_writing_only(tmp_path: Path) -> None:
    card = Card(tmp_path / "device", mount="ro")
    card.boot()
    assert card.asked.commands == []
    card.put("authorized_keys", KEYS)
    card.boot()
    assert [command[2] for command in card.asked.commands] == ["remount,rw", "remount,ro"]
    card.put("authorized_keys", "nonsense\n")
    card.boot()
    card.boot()
    assert len(card.asked.commands) == 4  # the reason is written once


def test_a_device_whose_state_cannot_be_written_leaves_the_files_for_the_next_boot(card: Card) -> None:
    card.put("authorized_keys", KEYS)
    keys = card.device.login_keys
    keys.parent.parent.mkdir(parents=True, exist_ok=True)
    keys.parent.write_text("in the way")
    outcome = card.boot()["authorized_keys"]
    assert outcome.result == "failed"
    assert card.names() == {"authorized_keys"}
    keys.parent.unlink()
    assert card.boot()["authorized_keys"].result == "taken"


def test_the_same_file_put_there_again_is_taken_over_again(card: Card) -> None:
    card.put("authorized_keys", KEYS)
    card.boot()
    card.device.login_keys.write_text(f"{key_line(comment='other')}\n")
    card.put("authorized_keys", KEYS)
    card.boot()
    assert card.device.login_keys.read_text() == KEYS
