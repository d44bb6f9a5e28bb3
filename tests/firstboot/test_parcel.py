from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.firstboot.parcel import LIMIT_BYTES, Found, Refused, connection_name, kind_of, kind_of_taken, text_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("magnitude.yaml", "config"),
        ("MAGNITU~1.YAML", None),
        ("MAGNITUDE.YML", "config"),
        ("Magnitude.yaml.txt", "config"),
        ("wifi.yaml", "wifi"),
        ("WiFi.YAML", "wifi"),
        ("authorized_keys", "login keys"),
        ("authorized_keys.TXT", "login keys"),
        ("Home.nmconnection", "connection"),
        (".nmconnection", None),
        ("README.txt", None),
        ("wifi.yaml.taken", None),
        ("wifi.yaml.rejected.txt", None),
        ("._wifi.yaml", None),
        ("", None),
    ],
)
def test_names_count_whatever_their_case_and_an_editors_ending(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind


def test_what_was_taken_over_is_told_by_its_ending() -> None:
    assert kind_of_taken("WIFI.YAML.TAKEN") == "wifi"
    assert kind_of_taken("wifi.yaml") is None
    assert kind_of_taken("notes.taken") is None


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_texts_of_any_editor_are_read(encoding: str, end: str) -> None:
    data = f"log:{end}  level: debug{end}".encode(encoding)
    assert text_of(Found(name="magnitude.yaml", data=data), "config") == "log:\n  level: debug\n"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"\0" * 512, "empty"),
        (b"\xff\xfea", "UTF-8"),
        (b"caf\xe9", "UTF-8"),
        (b"log:\0\0", "zero bytes"),
        (b"a" * (LIMIT_BYTES["wifi"] + 1), "larger"),
    ],
)
def test_what_is_no_text_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(Refused, match=why):
        text_of(Found(name="wifi.yaml", data=data), "wifi")


def test_what_cannot_be_read_is_refused_with_its_reason() -> None:
    with pytest.raises(Refused, match="a symbolic link"):
        text_of(Found(name="wifi.yaml", unreadable="a symbolic link"), "wifi")


@given(st.text(max_size=40))
def test_a_connection_is_kept_under_a_name_that_is_only_a_name(stem: str) -> None:
    kept = connection_name(f"{stem}.nmconnection")
    assert kept.endswith(".nmconnection")
    assert not set(kept[: -len(".nmconnection")]) - set("abcdefghijklmnopqrstuvwxyz0123456789-_")
    assert len(kept) <= 80
