"""Files for the first boot that cannot be right are refused before anything is written."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from disk_images import KEY

from flashing.boot_files import read_boot_files
from flashing.terms import FlashError

PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (PRIVATE.encode(), "private key"),
        (b"hello\n", "line 1 is no public key"),
        (b"# nothing yet\n", "holds no key"),
        (b"", "empty"),
        (b" \r\n", "empty"),
        (b"\xff\xfe\x00", "no text"),
        (f"{KEY}\n".encode() * 4000, "far more"),
    ],
    ids=["private", "prose", "comment", "empty", "blank", "binary", "huge"],
)
def test_what_is_no_public_key_never_gets_onto_a_card(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(FlashError, match=said):
        read_boot_files(None, [path], None)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FlashError, match=r"missing\.yaml cannot be read"):
        read_boot_files(tmp_path / "missing.yaml", [], None)


def test_keys_of_several_files_from_an_editor_with_other_line_ends_become_one_file(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(f'\N{BYTE ORDER MARK}from="10.0.0.0/8",no-pty {KEY} me\r\n\r\n  # mine\r\n'.encode())
    two.write_bytes(f"{KEY} you".encode())
    (file,) = read_boot_files(None, [one, two], None)
    assert file.data.decode() == f'from="10.0.0.0/8",no-pty {KEY} me\n{KEY} you\n'


def test_wifi_keeps_the_kind_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / "any"
    names = []
    for text in ("ssid: home\npsk: secret\n", "[connection]\nid=home\n"):
        path.write_text(text)
        (file,) = read_boot_files(None, [], path)
        names.append(file.name)
    assert names == ["wifi.yaml", "wifi.nmconnection"]


def test_the_sources_are_understood_by_the_oldest_python_that_is_promised() -> None:
    scripts = Path(__file__).resolve().parent.parent.parent / "scripts"
    sources = [scripts / "flash", *(scripts / "flashing").glob("*.py")]
    assert len(sources) > 10
    for source in sources:
        ast.parse(source.read_text(), feature_version=(3, 9))
