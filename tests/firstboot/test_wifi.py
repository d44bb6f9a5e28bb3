from __future__ import annotations

import configparser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.firstboot.parcel import Refused
from magnitude.firstboot.wifi import Wifi, check_connection, keyfile_of, parse_wifi

SECRET = "hunter2-hunter2"


def profile(wifi: Wifi) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(delimiters="=", comment_prefixes="#")
    parser.read_string(keyfile_of(wifi))
    return parser


def test_a_network_becomes_a_connection_that_joins_by_itself() -> None:
    wifi = parse_wifi(f"ssid: Workshop\npsk: {SECRET}\ncountry: de\n")
    assert (wifi.ssid, wifi.psk, wifi.country) == ("Workshop", SECRET, "DE")
    found = profile(wifi)
    assert found["connection"]["type"] == "wifi"
    assert bytes(int(number) for number in found["wifi"]["ssid"].rstrip(";").split(";")) == b"Workshop"
    assert found["wifi-security"]["psk"] == SECRET


def test_an_open_network_has_to_be_called_open() -> None:
    assert "wifi-security" not in profile(parse_wifi("ssid: Cafe\nopen: true\n"))
    with pytest.raises(Refused, match="psk"):
        parse_wifi("ssid: Cafe\n")


def test_a_passphrase_of_digits_is_a_passphrase() -> None:
    assert parse_wifi("ssid: 12345\npsk: 0123456789\n").psk == "0123456789"
    assert parse_wifi("ssid: 12345\npsk: 12345678\n").ssid == "12345"


def test_a_hidden_network_is_searched_for() -> None:
    assert profile(parse_wifi(f"ssid: Cellar\npsk: {SECRET}\nhidden: true\n"))["wifi"]["hidden"] == "true"


@pytest.mark.parametrize(
    "text",
    [
        f"psk: {SECRET}\n",
        f"ssid: {'n' * 33}\npsk: {SECRET}\n",
        f"ssid: Workshop\npsk: {SECRET[:7]}\n",
        f"ssid: Workshop\npsk: {SECRET * 9}\n",
        f"ssid: Workshop\npsk: {SECRET}é\n",
        f"ssid: Workshop\npsk: [{SECRET}]\n",
        f"ssid: Workshop\npsk: {SECRET}\ncountry: Germany\n",
        f"ssid: Workshop\npsk: {SECRET}\nhidden: perhaps\n",
        f"ssid: Workshop\npsk: {SECRET}\nopen: true\n",
        f"ssid: Workshop\npsk: '{SECRET}\n",
        f"ssid: Workshop\npsk: !{SECRET}\n",
        f"ssid: Workshop\npsk: *{SECRET}\n",
        f"ssid: Workshop\n{SECRET}: psk\n",
        f"ssid: Workshop\npsk: {SECRET}\npsk: {SECRET}\n",
        f"psk:{SECRET}\n",
        f"- {SECRET}\n",
    ],
)
def test_a_wrong_file_is_refused_without_saying_the_passphrase(text: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_wifi(text)
    said = f"{refused.value.message} {refused.value.hint}"
    assert SECRET[:7] not in said
    assert refused.value.hint


def test_a_passphrase_is_not_in_what_a_traceback_would_show() -> None:
    assert SECRET not in repr(Wifi(ssid="Workshop", psk=SECRET))


# What GLib reads from a key file's value: blanks in front of it are dropped, and these stand for characters.
ESCAPES = {"s": " ", "n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


def as_glib_reads(value: str) -> str:
    text, read = value.lstrip(" "), ""
    while text:
        if text[0] == "\\":
            read, text = read + ESCAPES[text[1]], text[2:]
        else:
            read, text = read + text[0], text[1:]
    return read


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=8, max_size=63))
def test_every_passphrase_survives_the_key_file(psk: str) -> None:
    (line,) = (line for line in keyfile_of(Wifi(ssid="x", psk=psk)).splitlines() if line.startswith("psk="))
    assert as_glib_reads(line.removeprefix("psk=")) == psk


@given(st.text(min_size=1, max_size=8).filter(lambda ssid: "\0" not in ssid))
def test_every_name_of_a_network_survives_the_key_file(ssid: str) -> None:
    name = ssid.encode("utf-8", "replace")
    found = profile(Wifi(ssid=name.decode(), psk="12345678"))["wifi"]["ssid"]
    assert bytes(int(number) for number in found.rstrip(";").split(";")) == name


def test_a_connection_of_another_system_is_taken_as_it_is() -> None:
    check_connection(keyfile_of(Wifi(ssid="Workshop", psk=SECRET)))
    check_connection("[connection]\nid=Wired\ntype=ethernet\n\n[ipv4]\nmethod=manual\naddress1=192.0.2.7/24\n")


@pytest.mark.parametrize(
    "text",
    [
        f"psk={SECRET}\n",
        f"[connection]\n{SECRET}\n",
        "[connection]\ntype=vpn\n[vpn]\nservice-type=org.example\n",
        "[connection]\nid=Nothing\n",
        f"[connection]\ntype=wifi\n[wifi-security]\npsk={SECRET}\n",
        f"[connection]\ntype=wifi\ntype=wifi\n[wifi]\nssid={SECRET}\n",
    ],
)
def test_a_file_that_is_no_connection_is_refused_without_what_is_in_it(text: str) -> None:
    with pytest.raises(Refused) as refused:
        check_connection(text)
    assert SECRET not in f"{refused.value.message} {refused.value.hint}"
