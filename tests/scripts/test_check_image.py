from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from magnitude.units.layout import Installation, enabled, plan
from magnitude.units.place import below, place
from magnitude.units.shipped import read_shipped, shipped_folder

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts/check-image"
UNITS = sorted(
    Path(name).name for name in read_shipped(shipped_folder()) if re.fullmatch(r"(image/)?[\w-]+\.\w+", name)
)
SSHD = "Include /etc/ssh/sshd_config.d/*.conf\nPasswordAuthentication yes\nUsePAM yes\n"
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk=\n-----END OPENSSH PRIVATE KEY-----\n"


def write(root: Path, name: str, text: str = "") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root file system with our units in it, as an image has it."""
    root = tmp_path / "root"
    installation = Installation(systemd_version=257, prefix="/usr", command="/usr/bin/magnitude", image=True)
    files = plan(read_shipped(shipped_folder()), installation)
    place(files, root, "/usr")
    for folder, unit in enabled(files):
        link = below(root, f"etc/systemd/system/{folder}/{Path(unit).name}")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(unit)
    write(root, "etc/machine-id")
    write(root, "etc/os-release", "ID=magnitude-os\n")
    write(root, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\nmagnitude:x:999:999::/var/lib/magnitude:/bin/false\n")
    write(root, "etc/shadow", "root:*:1:0:99999:7:::\nmagnitude:!:1::::::\n")
    write(root, "etc/ssh/sshd_config", SSHD)
    write(root, "var/lib/magnitude/models/tiny/manifest.json", "{}")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    return root


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"/usr/sbin:/sbin:{os.environ['PATH']}"},
    )


def found(root: Path, *options: str) -> list[str]:
    done = run("--json", *options, root)
    assert done.returncode in (0, 1), done.stderr
    paths = [finding["path"] for finding in json.loads(done.stdout)]
    assert bool(paths) == bool(done.returncode)
    return paths


def test_an_image_as_it_should_be_passes(root: Path) -> None:
    done = run(root)
    assert (done.returncode, done.stdout) == (0, "Nothing found.\n"), done.stdout + done.stderr


def filled(name: str, text: str = "x\n") -> Callable[[Path], object]:
    return lambda root: write(root, name, text)


@pytest.mark.parametrize(
    ("damage", "path"),
    [
        (filled("etc/machine-id", "0123456789abcdef" * 2), "/etc/machine-id"),
        (lambda root: (root / "etc/machine-id").unlink(), "/etc/machine-id"),
        (filled("var/lib/dbus/machine-id"), "/var/lib/dbus/machine-id"),
        (filled("etc/ssh/ssh_host_ed25519_key.pub"), "/etc/ssh/ssh_host_ed25519_key.pub"),
        (filled("etc/dropbear/dropbear_rsa_host_key"), "/etc/dropbear/dropbear_rsa_host_key"),
        (filled("var/lib/systemd/random-seed"), "/var/lib/systemd/random-seed"),
        (filled("var/lib/magnitude/records.db"), "/var/lib/magnitude/records.db"),
        (filled("var/lib/magnitude/device-id"), "/var/lib/magnitude/device-id"),
        (filled("data/var/lib/magnitude/kv/saved"), "/data/var/lib/magnitude/kv"),
        (filled("var/lib/magnitude-device/machine-id"), "/var/lib/magnitude-device/machine-id"),
        (filled("root/.ssh/authorized_keys"), "/root/.ssh/authorized_keys"),
        (filled("etc/rauc/signing.pem", KEY), "/etc/rauc/signing.pem"),
        (
            filled("etc/wpa_supplicant/wpa_supplicant.conf", 'psk="secret"\n'),
            "/etc/wpa_supplicant/wpa_supplicant.conf",
        ),
        (
            filled("etc/NetworkManager/system-connections/h.nmconnection", "[wifi-security]\npsk=secret\n"),
            "/etc/NetworkManager/system-connections/h.nmconnection",
        ),
        (filled("etc/shadow", "root:$6$salt$hash:1::::::\n"), "/etc/shadow"),
        (filled("etc/shadow", "root::1::::::\n"), "/etc/shadow"),
        (filled("etc/passwd", "root::0:0:root:/root:/bin/sh\n"), "/etc/passwd"),
        (filled("etc/ssh/sshd_config", "PasswordAuthentication yes\n"), "/etc/ssh/sshd_config"),
        (filled("etc/ssh/sshd_config", f"passwordauthentication=yes\n{SSHD}"), "/etc/ssh/sshd_config"),
        (filled("etc/ssh/sshd_config", f"{SSHD}PermitEmptyPasswords yes\n"), None),
        (lambda root: write(root, "srv/drop").chmod(0o666), "/srv/drop"),
        (lambda root: write(root, "srv/open/x").parent.chmod(0o777), "/srv/open"),
        (filled("var/log/apt/history.log"), "/var/log/apt/history.log"),
        (
            lambda root: (root / "usr/lib/systemd/journald.conf.d/50-magnitude.conf").unlink(),
            "/etc/systemd/journald.conf",
        ),
        (
            filled("etc/systemd/journald.conf.d/99-own.conf", "[Journal]\nStorage=persistent\nSystemMaxUse=\n"),
            "/etc/systemd/journald.conf",
        ),
        (
            filled("etc/systemd/system/sysinit.target.wants/systemd-time-wait-sync.service"),
            "/etc/systemd/system/sysinit.target.wants/systemd-time-wait-sync.service",
        ),
    ],
)
def test_what_makes_devices_alike_or_open_is_found(
    root: Path, damage: Callable[[Path], object], path: str | None
) -> None:
    damage(root)
    # The shipped drop-in stands first and wins over what comes after it.
    assert set(found(root)) == ({path} if path else set())


@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_is_missed_when_it_is_not_there_or_masked(root: Path, unit: str) -> None:
    (root / "usr/lib/systemd/system" / unit).unlink()
    assert found(root) == [f"/usr/lib/systemd/system/{unit}"]
    (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    assert found(root) == [f"/usr/lib/systemd/system/{unit}"]


def test_every_unit_that_nothing_starts_is_found(root: Path) -> None:
    links = sorted((root / "etc/systemd/system").glob("*.wants/*"))
    assert len(links) > 5
    for link in links:
        target = link.readlink()
        link.unlink()
        assert found(root) == [f"/usr/lib/systemd/system/{link.name}"]
        link.symlink_to(target)


OPENEMBEDDED = "[Service]\nEnvironmentFile=-/etc/default/ssh\nExecStart=-/usr/sbin/sshd -D $SSHD_OPTS\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("etc/default/ssh", "SSHD_OPTS='-f /etc/ssh/sshd_config_readonly'\n"),
        ("etc/default/ssh", "# sshd\nSSHD_OPTS=-f/etc/ssh/sshd_config_readonly\n"),
        (
            "etc/systemd/system/sshd.service.d/own.conf",
            "[Service]\nExecStart=\nExecStart=/usr/sbin/sshd -D -f /etc/ssh/sshd_config_readonly\n",
        ),
    ],
    ids=["environment", "without quotes", "drop-in"],
)
def test_the_settings_that_count_are_those_that_sshd_is_started_with(root: Path, name: str, text: str) -> None:
    write(root, "usr/lib/systemd/system/sshd.service", OPENEMBEDDED)
    write(root, name, text)
    assert found(root) == ["/etc/ssh/sshd_config_readonly"]  # without it sshd does not start
    write(root, "etc/ssh/sshd_config_readonly", "PasswordAuthentication yes\n")
    assert set(found(root)) == {"/etc/ssh/sshd_config_readonly"}
    write(root, "etc/ssh/sshd_config_readonly", SSHD)
    write(root, "etc/ssh/sshd_config", "PasswordAuthentication yes\n")
    assert found(root) == []


def test_a_comment_gives_sshd_no_other_settings(root: Path) -> None:
    write(root, "etc/default/ssh", "# SSHD_OPTS='-f /etc/ssh/other'\nSSHD_OPTS=\n")
    write(root, "etc/ssh/sshd_config", "PasswordAuthentication yes\n")
    assert set(found(root)) == {"/etc/ssh/sshd_config"}


def test_rauc_must_not_mark_slots_good_beside_the_gate(root: Path) -> None:
    marking = "rauc-mark-good.service"
    write(root, f"usr/lib/systemd/system/{marking}", "[Unit]\n")
    assert found(root) == [f"/usr/lib/systemd/system/{marking}"]
    (root / "etc/systemd/system" / marking).symlink_to("/dev/null")
    assert found(root) == []


def test_a_system_with_the_package_keeps_what_is_its_own(root: Path) -> None:
    """It is somebody's machine: its ids, passwords and logs are as they should be."""
    write(root, "etc/machine-id", "0123456789abcdef" * 2)
    write(root, "etc/shadow", "root:$6$salt$hash:1::::::\n")
    write(root, "var/log/syslog", "x\n")
    (root / "usr/lib/systemd/system/magnitude-first-boot.service").unlink()
    assert found(root, "--package") == []
    write(root, "var/lib/magnitude/records.db", "x")
    assert found(root, "--package") == ["/var/lib/magnitude/records.db"]


def test_links_of_an_image_are_never_followed_into_this_machine(root: Path, tmp_path: Path) -> None:
    outside = write(tmp_path, "elsewhere/id", "0123456789abcdef" * 2)
    (root / "etc/machine-id").unlink()
    (root / "etc/machine-id").symlink_to(outside)
    (root / "var/lib/outside").symlink_to(tmp_path)
    write(tmp_path, "elsewhere/authorized_keys", "x")
    assert found(root) == []


def test_what_cannot_be_checked_is_not_called_good(tmp_path: Path) -> None:
    assert run(tmp_path / "nothing").returncode == 2
    assert run(tmp_path).returncode == 2
    empty = write(tmp_path, "empty.img")
    done = run(empty)
    assert done.returncode == 2
    assert done.stderr.startswith("check-image: ")


def why_no_images() -> str:
    path = "/usr/sbin:/sbin:/usr/bin:/bin"
    if missing := [name for name in ("sfdisk", "mke2fs", "mount") if shutil.which(name, path=path) is None]:
        return f"{', '.join(missing)} not installed on this machine"
    if os.geteuid() != 0:
        return "mounting an image needs root"
    return "" if list(Path("/dev").glob("loop*")) else "this machine has no loop devices"


@pytest.mark.skipif(bool(why_no_images()), reason=why_no_images() or "all there")
def test_a_disk_image_is_looked_into(root: Path, tmp_path: Path) -> None:
    image = disk_image(tmp_path, root, data=tmp_path / "data")
    done = run(image)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[2] for line in done.stderr.splitlines()] == ["1", "3"]  # what was left out is named
    before = image.read_bytes()
    write(root, "etc/machine-id", "0123456789abcdef" * 2)
    write(tmp_path / "data", "ssh/ssh_host_ed25519_key", KEY)
    image = disk_image(tmp_path, root, data=tmp_path / "data")
    assert before != image.read_bytes()
    assert found(image) == ["2:/etc/machine-id", "4:/ssh/ssh_host_ed25519_key"]


def disk_image(folder: Path, root: Path, *, data: Path) -> Path:
    """Four partitions: an empty boot partition, a root, an empty slot, data."""
    (data / "var/lib/magnitude/models").mkdir(parents=True, exist_ok=True)
    image = folder / "card.img"
    mib = 1 << 20
    with image.open("wb") as file:
        file.truncate(40 * mib)
    script = "label: gpt\n" + "".join(f"start={start * 2048}, size=16384\n" for start in (1, 9, 17, 25))
    environ = {**os.environ, "PATH": f"/usr/sbin:/sbin:{os.environ['PATH']}"}
    subprocess.run(["sfdisk", "--quiet", image], input=script, text=True, check=True, env=environ)
    for start, source in ((9, root), (25, data)):
        # A file of its own, copied into its place: mke2fs ends what it makes at the end of the file.
        part = folder / "part"
        part.unlink(missing_ok=True)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", source, part, "8M"], check=True, env=environ)
        with image.open("r+b") as file:
            file.seek(start * mib)
            file.write(part.read_bytes())
    return image
