"""RAUC itself, with the configuration that devices get and a key from `scripts/make-update-key`. By hand: it needs
the Debian packages rauc and squashfs-tools."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SYSTEM_CONF = ROOT / "yocto/meta-magnitude/dynamic-layers/rauc/recipes-core/rauc/files/system.conf"

pytestmark = [
    pytest.mark.on_demand,
    pytest.mark.skipif(
        shutil.which("rauc") is None or shutil.which("mksquashfs") is None,
        reason="lacks rauc or mksquashfs: run scripts/system-test-setup --on-demand",
    ),
]


def make_keys(folder: Path) -> Path:
    subprocess.run([ROOT / "scripts/make-update-key", folder], check=True, capture_output=True)
    return folder


def make_bundle(folder: Path, keys: Path) -> Path:
    content = folder / f"content-{keys.name}"
    content.mkdir()
    (content / "root.ext4").write_bytes(bytes(range(256)) * 4096)
    (content / "manifest.raucm").write_text(
        "[update]\ncompatible=magnitude-qemuarm64\nversion=1\n[bundle]\nformat=verity\n"
        "[image.rootfs]\nfilename=root.ext4\n"
    )
    bundle = folder / f"{keys.name}.raucb"
    done = subprocess.run(
        ["rauc", "--cert", keys / "update.cert.pem", "--key", keys / "update.key.pem", "bundle", content, bundle],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return bundle


def info(folder: Path, bundle: Path, *, more: str = "") -> subprocess.CompletedProcess[str]:
    """What a device of the machine qemuarm64 whose keyring is `folder`/ca.cert.pem says of a bundle."""
    text = SYSTEM_CONF.read_text()
    for name, value in {"MACHINE": "qemuarm64", "KEYRING": "ca.cert.pem", "ROOT_A": "a", "ROOT_B": "b"}.items():
        text = text.replace(f"@{name}@", value)
    assert "@" not in text
    conf = folder / "system.conf"
    conf.write_text(text + more)
    return subprocess.run(["rauc", f"--conf={conf}", "info", bundle], capture_output=True, text=True)


def test_a_device_takes_what_its_own_key_signed_and_nothing_else(tmp_path: Path) -> None:
    ours, theirs = make_keys(tmp_path / "ours"), make_keys(tmp_path / "theirs")
    taken = info(ours, make_bundle(tmp_path, ours))
    assert taken.returncode == 0, taken.stderr
    refused = info(ours, make_bundle(tmp_path, theirs))
    assert refused.returncode != 0
    assert "signature verification failed" in refused.stderr.lower()


def test_rauc_knows_every_key_of_the_configuration(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")
    bundle = make_bundle(tmp_path, keys)
    assert info(keys, bundle).returncode == 0
    wrong = info(keys, bundle, more="no-such-key=1\n")
    assert wrong.returncode != 0
    assert "no-such-key" in wrong.stderr
