"""What `scripts/flash --ssh-key` takes for a key: what sshd does, and what the board will take over."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flashing.public_keys import TYPES, key_lines
from magnitude.firstboot import login_keys
from magnitude.firstboot.parcel import Refused

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "firstboot"))

from parcels import key_line

ED25519 = key_line()
ECDSA_POINT = b"\4" + bytes.fromhex(
    "6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"
    "4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5"
)
ECDSA = key_line("ecdsa-sha2-nistp256", parts=(b"nistp256", ECDSA_POINT))
RSA = key_line("ssh-rsa", parts=(b"\1\0\1", b"\0" + b"\xff" * 256))

TAKEN = {
    "one": (ED25519, 1),
    "several, and comments anywhere": (f"# mine\n{ED25519}\n\n   # {ED25519}\n\t{ECDSA}\n{RSA}", 3),
    "ends of lines of other systems": (f"{ED25519}\r\n\r\n{ECDSA}\r", 2),
    "no name behind it": (" ".join(ED25519.split()[:2]), 1),
    "a name of several words": (f"{ED25519} of my second computer", 1),
    "options": (f'from="10.0.0.0/8",no-pty {ED25519}', 1),
    "an option with blanks in it": (f'restrict,command="echo two words" {ED25519}', 1),
    "an option with quotes in it": (f'command="echo \\"two  words\\"" {ED25519}', 1),
    "an option that names a key": (f'command="ssh-rsa AAAA" {ED25519}', 1),
    "more blanks than one": (f"  restrict\t{ED25519.replace(' ', '  ', 1)}", 1),
}
REFUSED = {
    "a semicolon is no comment": f"; {ED25519}",
    "a quote that ends too late": f'from="10.0.0.1 {ED25519}"',
    "prose": "ssh me the key for ssh-ed25519",
    "no comment either": f"{ED25519}\n// {ED25519}",
    "a key that is only quoted": f'command="{ED25519}"',
    "a quote that is one of the option's own": f'command="x\\" {ED25519}',
    "a quote that does not end": f'command="x {ED25519}',
    "a broken line": ED25519.replace(" ", "\n", 1),
    "cut off": ED25519[:40],
    "another type than it says": ED25519.replace("ssh-ed25519", "ssh-rsa"),
    "an old kind": key_line("ssh-dss", parts=(b"p", b"q", b"g", b"y")),
    "a short RSA key": key_line("ssh-rsa", parts=(b"\1\0\1", b"\0" + b"\xff" * 128)),
    "one of several": f"{ED25519}\nssh-ed25519\n{ECDSA}",
}


@pytest.mark.parametrize("case", TAKEN)
def test_keys_are_read_as_sshd_and_the_board_do(case: str, tmp_path: Path) -> None:
    text, count = TAKEN[case]
    lines = key_lines(text)
    assert len(lines) == count
    written = "".join(f"{line}\n" for line in lines)
    assert login_keys.parse_login_keys(written) == written
    if shutil.which("ssh-keygen"):
        # It reads files of keys by the same rules as sshd, and passes over what is none.
        (tmp_path / "keys").write_text(written)
        shown = subprocess.run(
            ["ssh-keygen", "-l", "-f", tmp_path / "keys"], capture_output=True, text=True, check=True
        )
        assert len(shown.stdout.splitlines()) == count


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_board_would_refuse_is_refused_at_the_desk(case: str) -> None:
    with pytest.raises(ValueError, match=r"^line \d+ is"):
        key_lines(REFUSED[case])
    with pytest.raises(Refused):
        login_keys.parse_login_keys(REFUSED[case])


def test_desk_and_board_know_the_same_kinds_of_keys() -> None:
    assert TYPES == login_keys._TYPES
