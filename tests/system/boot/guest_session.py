"""Guests with a service that answers, ready in a second or two.

A guest is booted once for each way in which its kernel is started, waits until the service serves, and is saved.
Tests get a copy that goes on from there. What is saved lies in the cache beside the root file systems, by a hash of
all that went into it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rootfs
from guest import QEMU, Guest, GuestError, copy_disk, overlay
from guest_image import GuestImage, add_agent, build_disk, build_kernel
from long_model import write_long_model

HERE = Path(__file__).resolve().parent
SUITE = "trixie"
# What the saved state depends on besides the root file system.
RECIPE = ("guest.py", "guest_agent.py", "guest_image.py", "guest_session.py", "long_model.py")
# Ways to start the kernel.
KERNEL_OPTIONS = {
    "serving": "",
    # A Raspberry Pi's kernel as it comes: pressure figures are off, and so was the memory controller for long.
    "without_controller": "cgroup_disable=memory psi=0",
}
SAVED = "serving"
# No drafts: some tests compare whole texts, and verified drafts may round differently.
# Memory is looked at more often than on a board, and steps come quicker: a test does not wait for minutes.
CONFIG = """\
engine: {speculation: off}
memory: {check_every_s: 1, cool_down_s: 2}
"""
CLIENT = "python3 /opt/test/guest_client.py"
# Ten times what the service takes to its first answer on two cores that do nothing else.
READY_S = 900.0


def why_not() -> str:
    """Why this machine cannot run guests; empty when it can."""
    if os.geteuid() != 0:
        return "needs root"
    needed = (
        QEMU,
        "setpriv",
        "qemu-img",
        "mmdebstrap",
        "mke2fs",
        "debugfs",
        "cpio",
        "depmod",
        "modprobe",
        "dpkg-deb",
    )
    if missing := [name for name in needed if not shutil.which(name)]:
        return f"{', '.join(missing)} not found: run scripts/system-test-setup"
    if os.uname().machine != "x86_64":
        return "guests are amd64, with programs from the host's package index"
    return ""


def wait_ready(guest: Guest) -> None:
    """Wait until the guest has booted and its service answers. Raises `GuestError` with the service's journal."""
    try:
        guest.check("systemctl start magnitude", timeout_s=READY_S)
        guest.until(f"{CLIENT} get /readyz", timeout_s=READY_S)
    except GuestError as error:
        raise GuestError(f"{error}\n{guest.journal('--unit=magnitude', '--lines=60')}") from error


class Answer:
    """A streamed answer that a client in the guest takes, beside what else the test does there."""

    def __init__(self, guest: Guest, tokens: int) -> None:
        self._guest = guest
        guest.check("rm -f /run/answer /run/begun")
        guest.check(f"systemd-run --property=StandardOutput=file:/run/answer {CLIENT} stream {tokens} /run/begun")
        guest.until("test -e /run/begun", timeout_s=READY_S)

    def whole(self) -> dict[str, Any]:
        """Wait for its end; what the client saw, as `guest_client.stream` tells it."""
        seen: dict[str, Any] = json.loads(
            self._guest.until("test -s /run/answer && cat /run/answer", timeout_s=READY_S)
        )
        return seen


class Guests:
    """Makes guests from `image`; what belongs to a run of one lies in folders below `runs`."""

    def __init__(self, image: GuestImage, runs: Path) -> None:
        self._image = image
        self._runs = runs

    @contextlib.contextmanager
    def restored(self, state: str = "serving") -> Iterator[Guest]:
        """A guest that serves; it thinks that it is 1970. `state` is one of `KERNEL_OPTIONS`."""
        saved = self._saved(state)
        with tempfile.TemporaryDirectory(dir=self._runs) as name:
            disk = copy_disk(saved, Path(name) / "disk.qcow2")
            with Guest(self._image, disk, Path(name), saved=SAVED, kernel_options=KERNEL_OPTIONS[state]) as guest:
                yield guest

    def new_disk(self, target: Path) -> Path:
        """A disk for guests that boot, as it was when the image was made."""
        return overlay(self._image, target)

    def booted(self, disk: Path, folder: Path) -> Guest:
        """A guest that boots from `disk`, whatever is on it; its files lie in `folder`."""
        return Guest(self._image, disk, folder)

    def _saved(self, state: str) -> Path:
        target = self._image.folder / f"{state}.qcow2"
        if target.exists():
            return target
        with tempfile.TemporaryDirectory(dir=self._runs) as name:
            disk = overlay(self._image, Path(name) / "disk.qcow2")
            with Guest(self._image, disk, Path(name), kernel_options=KERNEL_OPTIONS[state]) as guest:
                wait_ready(guest)
                guest.check("sync")
                guest.save(SAVED)
                guest.control("quit")
            shutil.move(disk, target)
        return target


def build_image() -> GuestImage:
    """The image for guests, from the cache or made now. Raises `BuildFailed`."""
    root = rootfs.build_root(SUITE)
    cache = rootfs.cache_folder()
    recipe = [hashlib.sha256((HERE / name).read_bytes()).hexdigest() for name in RECIPE]
    recipe += rootfs.contents(["image/guest/kernel.py"])
    version = subprocess.run([QEMU, "--version"], capture_output=True, text=True, check=True).stdout
    key = rootfs.key_of(root.name, version, *recipe)
    with rootfs.only_one(cache):
        return GuestImage(rootfs.cached(cache / f"guest-{SUITE}-{key}", lambda folder: _make(folder, root)))


def _make(folder: Path, root: Path) -> None:
    image = GuestImage(folder)
    build_kernel(image, SUITE)
    tree = folder / "root"
    subprocess.run(["cp", "--archive", "--reflink=auto", str(root), str(tree)], check=True)
    add_agent(tree)
    shutil.copy(HERE / "guest_client.py", tree / "opt/test")
    config = tree / "etc/magnitude/magnitude.yaml"
    config.parent.mkdir(exist_ok=True)
    config.write_text(CONFIG)
    models = tree / rootfs.MODELS.lstrip("/")
    shutil.rmtree(models / "tiny")
    write_long_model(models / "long")
    rootfs.in_root(tree, "chown", "-R", "magnitude:magnitude", rootfs.MODELS)
    build_disk(image, tree)
    shutil.rmtree(tree)
