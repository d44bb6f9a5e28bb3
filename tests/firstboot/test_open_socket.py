from __future__ import annotations

import logging

import pytest
from parcels import Asked, Card

from magnitude.config.server import ApiKey, ServerSettings
from magnitude.firstboot.device import prepare
from magnitude.firstboot.open_socket import DROP_IN, UNIX_SOCKET, opening
from magnitude.units.shipped import shipped_folder

KEYS = [ApiKey(name="desk", sha256="0" * 64)]
CONFIG = f'server:\n  listen: "0.0.0.0:11500"\n  api_keys: [{{name: desk, sha256: "{"0" * 64}"}}]\n'


def lines(listen: str, *, keys: bool = True) -> list[str]:
    return opening(ServerSettings(listen=listen, api_keys=KEYS if keys else [])).text.splitlines()


def test_the_shipped_address_needs_no_drop_in() -> None:
    assert opening(ServerSettings()).text == ""


def test_an_address_on_the_network_is_listened_on_and_opened_to_private_networks() -> None:
    said = lines("0.0.0.0:11500")
    assert said[:2] == ["[Socket]", "ListenStream="]
    assert f"ListenStream={UNIX_SOCKET}" in said
    assert "ListenStream=0.0.0.0:11500" in said
    assert any(line.startswith("IPAddressAllow=10.0.0.0/8 ") for line in said)
    assert "ListenStream=[::]:80" in lines("[::]:80")


@pytest.mark.parametrize("listen", ["127.0.0.1:8080", "[::1]:8080", "localhost:8080"])
def test_another_port_on_loopback_opens_nothing(listen: str) -> None:
    said = lines(listen, keys=False)
    assert any(line.endswith(":8080") for line in said)
    assert not any("Allow" in line for line in said)


def test_without_tcp_the_unix_socket_is_left() -> None:
    assert lines("") == ["[Socket]", "ListenStream=", f"ListenStream={UNIX_SOCKET}"]


@pytest.mark.parametrize("listen", ["board.example:11500", "0.0.0.0:0", "nonsense"])
def test_what_a_socket_cannot_listen_on_is_said_and_left(listen: str) -> None:
    found = opening(ServerSettings(listen=listen, api_keys=KEYS))
    assert (found.text, listen in found.notice) == ("", True)


def test_without_keys_nothing_is_opened() -> None:
    found = opening(ServerSettings(listen="0.0.0.0:11500"))
    assert found.text == ""
    assert "api_keys" in found.notice


def test_the_unix_socket_is_that_of_the_unit() -> None:
    unit = (shipped_folder() / "magnitude.socket").read_text()
    assert f"ListenStream={UNIX_SOCKET}\n" in unit
    assert f"ListenStream={ServerSettings().listen}\n" in unit


def test_a_boot_makes_the_drop_in_once_and_takes_it_away_again(card: Card) -> None:
    card.device.config.parent.mkdir(parents=True)
    card.device.config.write_text(CONFIG)
    asked = Asked()
    path = card.device.run_units / DROP_IN
    prepare(card.device, asked)
    assert path.read_text().splitlines() == lines("0.0.0.0:11500")
    # Both: after a change on a device that runs, systemd refuses to start a socket whose service is active.
    restart = ("systemctl", "--no-block", "try-restart", "magnitude.socket", "magnitude.service")
    assert asked.commands.count(restart) == 1
    prepare(card.device, asked)
    assert asked.commands.count(restart) == 1
    card.device.config.write_text("log: {level: info}\n")
    prepare(card.device, asked)
    assert not path.exists()
    assert asked.commands.count(restart) == 2


def test_a_configuration_that_cannot_be_read_changes_no_socket(card: Card, caplog: pytest.LogCaptureFixture) -> None:
    card.device.config.parent.mkdir(parents=True)
    card.device.config.write_text("server: nonsense\n")
    with caplog.at_level(logging.WARNING):
        prepare(card.device, Asked())
    assert not (card.device.run_units / DROP_IN).exists()
