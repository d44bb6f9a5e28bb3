"""The arm64 package in an arm64 Debian on another machine, program by program under QEMU's user emulation.

systemd cannot run so: the package is installed as in a chroot, and the service is started by hand, as the user that
its unit names. What systemd makes of the units is the other architecture's test. Debian's own packages are unpacked
and not installed: that takes longest in emulation, and is not what is tested. It takes many minutes even so, most
of them for the postinst, which compiles all Python files.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import rootfs
from booted_board import TINY
from nspawn import until

from image.guest.build import why_not
from image.guest.debian import apt_sources, run

pytestmark = [pytest.mark.system, pytest.mark.on_demand]

# What the package depends on, and what its scripts call.
PACKAGES = (
    "base-files",
    "base-passwd",
    "bash",
    "coreutils",
    "dash",
    "debconf",
    "diffutils",
    "dpkg",
    "findutils",
    "grep",
    "init-system-helpers",
    "libc-bin",
    "libstdc++6",
    "libudev1",
    "perl-base",
    "python3.13",
    "sed",
    "systemd",
    "tar",
    "udev",
    "util-linux",
    "zlib1g",
)
STATE = "/var/lib/magnitude"
# Everything is ten to thirty times as slow.
START_S = 1800.0
# /proc but not /sys: with both, ONNX Runtime's look at the processor ends in a segmentation fault in this emulation.
ENTER = """\
mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && mount -t tmpfs tmpfs "$1/run" || exit 1
root=$1
shift
exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"
"""


def inside(root: Path, *command: str) -> list[str]:
    """The command line that runs `command` in `root`, in a mount namespace of its own."""
    return ["unshare", "--mount", "--propagation=private", "--", "sh", "-c", ENTER, "sh", str(root), *command]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MAGNITUDE_DEB names one that is there; otherwise it is built."""
    if given := os.environ.get("MAGNITUDE_DEB"):
        return Path(given)
    folder = tmp_path_factory.mktemp("package")
    build_deb = rootfs.CHECKOUT / "image/debian/build_deb.py"
    subprocess.run(
        [sys.executable, str(build_deb), "--suite=trixie", f"--out={folder}", "--fast", "arm64"], check=True
    )
    (built,) = folder.glob("*.deb")
    return built


@pytest.fixture(scope="module")
def root(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if reason := why_not("arm64"):
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("arm64") / "root"
    options = ["--mode=root", "--variant=extract", "--architectures=arm64", '--aptopt=Acquire::Languages "none"']
    sources = apt_sources("trixie")
    run("mmdebstrap", "--quiet", *options, f"--include={','.join(PACKAGES)}", "trixie", root, *sources)
    for folder in ("info", "triggers", "updates"):
        (root / "var/lib/dpkg" / folder).mkdir(exist_ok=True)
    (root / "var/lib/dpkg/status").touch()
    shutil.copyfile(package, root / "tmp/magnitude.deb")
    yield root
    shutil.rmtree(root)


def test_the_arm64_package_is_installed_answers_and_is_purged(root: Path) -> None:
    def call(*command: str) -> str:
        done = subprocess.run(inside(root, *command), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    said = call("dpkg", "--force-depends", "--install", "/tmp/magnitude.deb")
    assert "sudo magnitude import FILE --name NAME && sudo systemctl start magnitude" in said
    assert call("dpkg", "--print-architecture").strip() == "arm64"
    assert call("uname", "-m").strip() == "aarch64"
    enabled = root / "etc/systemd/system/multi-user.target.wants/magnitude.service"
    assert enabled.is_symlink()
    shutil.copytree(rootfs.CHECKOUT / rootfs.TINY, root / STATE.lstrip("/") / "models/tiny")
    call("chown", "-R", "magnitude:magnitude", STATE)
    checked = subprocess.run(
        [sys.executable, str(rootfs.CHECKOUT / "scripts/check-image"), "--package", str(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout) == (0, "Nothing found.\n")

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve = ["setpriv", "--reuid=magnitude", "--regid=magnitude", "--clear-groups", "env", f"STATE_DIRECTORY={STATE}"]
    serve += [
        "CACHE_DIRECTORY=/var/cache/magnitude",
        "RUNTIME_DIRECTORY=/tmp",
        "CONFIGURATION_DIRECTORY=/etc/magnitude",
    ]
    # An emulated processor takes longer than any real one may.
    options = ["--set", "engine.step_deadline_s=600s", "--set", "policy.explore=off"]
    log = root / "tmp/log"
    with log.open("w") as file:
        service = subprocess.Popen(
            inside(root, *serve, "magnitude", "serve", f"--listen=127.0.0.1:{port}", *options),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=START_S) as client:

            def ready() -> bool:
                assert service.poll() is None, log.read_text()
                try:
                    return client.get("/readyz").status_code == 200
                except httpx.TransportError:
                    return False

            until(ready, within_s=START_S, what=f"the service is ready\n{log.read_text()[-3000:]}")
            reply = client.post("/v1/completions", json=TINY)
            assert reply.status_code == 200, reply.text
            assert reply.json()["choices"][0]["text"]
            assert reply.json()["usage"]["completion_tokens"] == TINY["max_tokens"]
    finally:
        service.terminate()
        service.wait()

    call("dpkg", "--purge", "magnitude")
    assert not (root / "usr/lib/magnitude").exists()
    assert not (root / "etc/magnitude").exists()
    assert (root / STATE.lstrip("/") / "models/tiny").is_dir(), "nobody agreed to its deletion"
