"""A machine that boots a whole image, boot loader and all, and may do so again and again."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
from guest import GuestError, Machine

from image.guest import qemu

# Patience, not a measurement: emulated, on a busy host, and the slower architecture.
BOOT_S = 1200.0
POLL_S = 0.5
SLOT = re.compile(rb"Booting slot ([AB])")


class ImageMachine(Machine):
    """`disk` are options of QEMU for a disk; the service's port is forwarded to `port`."""

    def __init__(self, architecture: str, disk: Sequence[str], folder: Path, *, port: int | None = None) -> None:
        self.port = port or free_port()
        super().__init__([*qemu.machine(architecture), *qemu.network(self.port), *disk], folder)

    def boots(self) -> str:
        """The slots that the boot loader has chosen so far, such as `AAB`."""
        if not self.console.exists():
            return ""
        return b"".join(SLOT.findall(self.console.read_bytes())).decode()

    def wait_boots(self, count: int, *, within_s: float = BOOT_S) -> str:
        """Wait until it has been booted so often; the slots."""
        deadline = time.monotonic() + within_s
        while len(slots := self.boots()) < count:
            assert time.monotonic() < deadline, f"booted {slots!r} only; the console's end:\n{self.console_end()}"
            assert self._process.poll() is None, f"QEMU has ended; the console's end:\n{self.console_end()}"
            time.sleep(POLL_S)
        return slots

    def slot(self) -> str:
        """The slot that runs, by the kernel's command line; waits for the boot."""
        self.wait_boots(1)
        found = re.search(r"rauc\.slot=([AB])", self.check("cat /proc/cmdline", timeout_s=BOOT_S))
        assert found
        return found[1]

    def wait_ready(self) -> None:
        """Wait until the service answers on its unix socket."""
        self.wait_boots(1)
        try:
            self.until("python3 /opt/test/ready.py", timeout_s=BOOT_S)
        except GuestError as error:
            status = self.run("systemctl --no-pager status magnitude").output
            raise GuestError(f"{error}\n{status}\n{self.journal('--boot', '--lines=150')}") from error

    def wait_confirmed(self, slot: str) -> None:
        """Wait until the check of the boot is over, and `slot`, which runs, was marked good by it."""
        self.wait_boots(1)
        check = "magnitude-boot-check.service"
        # Python is slow to start here, and what it looks at is the same: the unit has ended, and the tries are back.
        listed = "grub-editenv /boot/firmware/grub/grubenv list"
        ended = f"systemctl show --property=Result,ActiveState,ExecMainStatus {check}"
        self.until(
            f"{listed} | grep -qx {slot}_LEFT=9 && {ended} | grep -qx ActiveState=inactive"
            f" || {{ {ended}; journalctl --no-pager -b -u {check} | tail -n 20; false; }}",
            timeout_s=BOOT_S,
        )
        assert "ExecMainStatus=0" in self.check(ended)

    def install(self, update: Path, number: int = 0) -> None:
        """Install the update that is the machine's extra disk with this number."""
        # The disk is as large as whole sectors, the bundle's signature lies at its very end.
        source, size = f"/dev/disk/by-id/virtio-extra{number}", update.stat().st_size
        self.check(f"head -c {size} {source} >/data/update.raucb", timeout_s=BOOT_S)
        self.check("rauc install /data/update.raucb && rm /data/update.raucb", timeout_s=BOOT_S)

    def reboot(self) -> str:
        """Reboot as an admin does, and wait for the boot loader's choice; the slots so far."""
        before = len(self.boots())
        # By a timer: the answer to this very command must have come back before the agent ends.
        self.check("systemd-run --quiet --on-active=1 systemctl reboot")
        return self.wait_boots(before + 1)

    def power_off(self) -> None:
        """Power off as an admin does, and wait for the end."""
        self.check("systemd-run --quiet --on-active=1 systemctl poweroff")
        self._process.wait(timeout=BOOT_S)

    def client(self, api_key: str, *, timeout_s: float = BOOT_S) -> httpx.Client:
        """A client on this machine's side of the forwarded port."""
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {api_key}", "X-Magnitude-Deadline-Ms": "3600000"},
            timeout=timeout_s,
            trust_env=False,
        )

    def wait_client(self, api_key: str) -> httpx.Client:
        """Such a client, once the service is ready. No agent is needed for it."""
        deadline = time.monotonic() + BOOT_S
        while True:
            try:
                # With one of its own: a client that was used cannot begin a `with` block any more.
                with self.client(api_key) as probe:
                    if probe.get("/readyz").status_code == 200:
                        return self.client(api_key)
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline, f"not ready; the console's end:\n{self.console_end()}"
            assert self._process.poll() is None, f"QEMU has ended; the console's end:\n{self.console_end()}"
            time.sleep(POLL_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def overlay_disk(image: Path, target: Path) -> list[str]:
    """Options of QEMU for a disk that shows `image` and writes to `target`."""
    if not target.exists():
        subprocess.run(
            ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(image), str(target)], check=True
        )
    return [
        *("-drive", f"file={target},if=none,id=disk,format=qcow2,cache=writeback"),
        *("-device", "virtio-blk-pci,drive=disk,bootindex=0"),
    ]


def extra_disk(path: Path, number: int = 0) -> list[str]:
    """Options of QEMU for a further disk, which is only read."""
    return [
        *("-drive", f"file={path},if=none,id=extra{number},format=raw,readonly=on"),
        *("-device", f"virtio-blk-pci,drive=extra{number},serial=extra{number}"),
    ]
