from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from parcels import key_line

from magnitude.firstboot.login_keys import parse_login_keys
from magnitude.firstboot.parcel import Refused

ED25519 = key_line()


def test_keys_are_taken_as_they_stand_with_comments_left_out() -> None:
    text = f"# my keys\n\n  {ED25519}  \n{key_line('ecdsa-sha2-nistp256', parts=(b'nistp256', b'p' * 65))}\n"
    lines = parse_login_keys(text).splitlines()
    assert [line.split()[0] for line in lines] == ["ssh-ed25519", "ecdsa-sha2-nistp256"]


def test_options_in_front_of_a_key_are_kept() -> None:
    line = f'restrict,command="echo \\"two words\\"" {ED25519}'
    assert parse_login_keys(line) == f"{line}\n"


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_what_ssh_keygen_makes_is_accepted(kind: str, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", tmp_path / "key"], check=True)
    public = (tmp_path / "key.pub").read_text()
    assert parse_login_keys(public) == public
    with pytest.raises(Refused, match="private key"):
        parse_login_keys((tmp_path / "key").read_text())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no key"),
        ("# nothing yet\n", "no key"),
        (f"{ED25519}\nssh-ed25519\n", "line 2"),
        (f"{ED25519[:40]}\n", "line 1"),
        (f"{ED25519}\n{ED25519.replace('ssh-ed25519', 'ssh-rsa')}\n", "line 2"),
        (key_line("ssh-dss", parts=(b"p", b"q")), "no type of key"),
        (key_line("ssh-rsa", parts=(b"\1\0\1", b"\xff" * 128)), "2048 bits"),
        (ED25519.replace(" ", "\n"), "line 1"),
        ("---- BEGIN SSH2 PUBLIC KEY ----\nAAAA\n", "RFC 4716"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n", "private key"),
        ("PuTTY-User-Key-File-3: ssh-ed25519\n", "Line 1"),
    ],
)
def test_a_file_in_which_anything_is_wrong_is_refused_as_a_whole(text: str, why: str) -> None:
    with pytest.raises(Refused, match=f"(?i){why}"):
        parse_login_keys(text)


def test_a_refusal_never_quotes_the_file() -> None:
    with pytest.raises(Refused) as refused:
        parse_login_keys(f"{ED25519[:-30]}secretword\n")
    assert "secretword" not in f"{refused.value.message} {refused.value.hint}"
