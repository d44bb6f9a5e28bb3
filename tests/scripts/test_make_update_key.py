"""`scripts/make-update-key` with the real openssl."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts/make-update-key"


def make(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, folder, *more], capture_output=True, text=True)


def openssl(*words: str | Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["openssl", *words], input=given, capture_output=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A name that has to be quoted wherever it is written.
    folder = tmp_path_factory.mktemp("made") / "the owner's keys"
    assert make(folder).returncode == 0
    return folder


def test_what_the_key_signs_is_trusted_by_the_ca_for_code_only(keys: Path, tmp_path: Path) -> None:
    signature = tmp_path / "signature"
    signed = openssl(
        *("cms", "-sign", "-binary", "-outform", "DER", "-out", signature),
        *("-signer", keys / "update.cert.pem", "-inkey", keys / "update.key.pem"),
        given=b"a bundle",
    )
    assert signed.returncode == 0, signed.stderr

    def verified(content: bytes, purpose: str) -> bool:
        bundle = tmp_path / "bundle"
        bundle.write_bytes(content)
        words = ("cms", "-verify", "-binary", "-inform", "DER", "-in", signature, "-content", bundle)
        return openssl(*words, "-CAfile", keys / "ca.cert.pem", "-purpose", purpose).returncode == 0

    assert verified(b"a bundle", "any")
    assert not verified(b"another", "any")
    assert not verified(b"a bundle", "smimesign")


def test_private_keys_are_readable_by_their_owner_alone(keys: Path) -> None:
    for name in ("ca.key.pem", "update.key.pem"):
        assert stat.S_IMODE((keys / name).stat().st_mode) == 0o600
    assert sorted(path.name for path in keys.iterdir()) == [
        "ca.cert.pem",
        "ca.key.pem",
        "env.sh",
        "update.cert.pem",
        "update.key.pem",
    ]


def test_env_sh_names_the_files_that_the_build_asks_for(keys: Path) -> None:
    command = f'. "{keys}/env.sh" && env'
    shown = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    variables = {line for line in shown.stdout.splitlines() if str(keys) in line}
    assert variables == {
        f"RAUC_KEY_FILE={keys}/update.key.pem",
        f"RAUC_CERT_FILE={keys}/update.cert.pem",
        f"MAGNITUDE_KEYRING_FILE={keys}/ca.cert.pem",
    }


def test_a_key_that_devices_may_trust_is_never_overwritten(keys: Path) -> None:
    before = (keys / "update.key.pem").read_bytes()
    again = make(keys)
    assert again.returncode == 1
    assert "there already" in again.stderr
    assert (keys / "update.key.pem").read_bytes() == before


def test_no_key_is_made_in_a_git_checkout(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    refused = make(tmp_path / "below/keys")
    assert refused.returncode == 1
    assert "git checkout" in refused.stderr
    assert not (tmp_path / "below").exists()


def test_two_keys_are_different(keys: Path, tmp_path: Path) -> None:
    assert make(tmp_path / "other", "Some Devices Inc.").returncode == 0
    assert (tmp_path / "other/ca.cert.pem").read_bytes() != (keys / "ca.cert.pem").read_bytes()
    verified = openssl("verify", "-CAfile", keys / "ca.cert.pem", tmp_path / "other/update.cert.pem")
    assert verified.returncode != 0


def test_a_further_key_is_signed_by_the_ca_that_devices_trust_and_brings_no_other(keys: Path, tmp_path: Path) -> None:
    further = tmp_path / "further"
    done = subprocess.run([SCRIPT, "--ca", keys, further], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert openssl("verify", "-CAfile", keys / "ca.cert.pem", further / "update.cert.pem").returncode == 0
    assert (further / "update.key.pem").read_bytes() != (keys / "update.key.pem").read_bytes()
    assert (further / "ca.cert.pem").read_bytes() == (keys / "ca.cert.pem").read_bytes()
    # What signs further keys stays where it is.
    assert sorted(path.name for path in further.iterdir()) == [
        "ca.cert.pem",
        "env.sh",
        "update.cert.pem",
        "update.key.pem",
    ]


def test_a_further_key_needs_the_ca_s_own_key(keys: Path, tmp_path: Path) -> None:
    (tmp_path / "public").mkdir()
    (tmp_path / "public/ca.cert.pem").write_bytes((keys / "ca.cert.pem").read_bytes())
    refused = subprocess.run(
        [SCRIPT, "--ca", tmp_path / "public", tmp_path / "further"], capture_output=True, text=True
    )
    assert refused.returncode == 1
    assert "ca.key.pem" in refused.stderr
    assert not (tmp_path / "further").exists()
