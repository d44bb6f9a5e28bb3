from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from parcels import Asked

from magnitude.firstboot.host_keys import KEY_NAME, HostKeyFailed, make_host_key
from magnitude.units.host import run_quietly


def test_a_key_is_made_once_and_is_one_that_ssh_reads(tmp_path: Path) -> None:
    folder = tmp_path / "ssh"
    assert make_host_key(folder, run_quietly)
    key = folder / KEY_NAME
    assert key.stat().st_mode & 0o777 == 0o600
    public = subprocess.run(["ssh-keygen", "-y", "-f", key], capture_output=True, text=True, check=True).stdout
    assert (folder / f"{KEY_NAME}.pub").read_text().split()[:2] == public.split()[:2]
    before = key.read_bytes()
    assert not make_host_key(folder, run_quietly)
    assert key.read_bytes() == before
    assert {path.name for path in folder.iterdir()} == {KEY_NAME, f"{KEY_NAME}.pub"}


def test_two_devices_have_two_keys(tmp_path: Path) -> None:
    for name in ("one", "other"):
        make_host_key(tmp_path / name, run_quietly)
    assert (tmp_path / "one" / KEY_NAME).read_bytes() != (tmp_path / "other" / KEY_NAME).read_bytes()


@pytest.mark.parametrize("length", [0, 10, 200])
def test_a_torn_key_is_set_aside_and_made_anew(tmp_path: Path, length: int) -> None:
    make_host_key(tmp_path, run_quietly)
    key = tmp_path / KEY_NAME
    torn = key.read_bytes()[:length]
    key.write_bytes(torn)
    assert make_host_key(tmp_path, run_quietly)
    assert key.read_bytes() != torn
    assert (tmp_path / f"{KEY_NAME}.broken-1").read_bytes() == torn


def test_a_key_that_others_could_read_is_closed_again(tmp_path: Path) -> None:
    make_host_key(tmp_path, run_quietly)
    (tmp_path / KEY_NAME).chmod(0o644)
    make_host_key(tmp_path, run_quietly)
    assert (tmp_path / KEY_NAME).stat().st_mode & 0o777 == 0o600


def test_a_program_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(HostKeyFailed, match="no space"):
        make_host_key(tmp_path, Asked(keygen="no space"))
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_makes_no_key_is_found_out(tmp_path: Path) -> None:
    with pytest.raises(HostKeyFailed):
        make_host_key(tmp_path, Asked())


def test_a_folder_that_cannot_be_written_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostKeyFailed, match="cannot be written"):
        make_host_key(tmp_path / "file/ssh", run_quietly)
