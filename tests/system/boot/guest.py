"""A virtual machine in software emulation: booted once, saved, and restored for each test.

QEMU interprets the guest's instructions (`-accel tcg`), so that it runs on every machine, also inside another virtual
machine; seconds in the guest are about ten times as long as on the host's CPU. The guest has no network. Commands
reach it through `guest_agent.py`.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from guest_image import GuestImage

QEMU = "qemu-system-x86_64"
MEMORY_MB = 1024
# A panic ends the machine. On a busy host the kernel's check of its timer fails, so it is left out. So is what guards
# against leaks of real processors, and the clock is not read from a device, a round through the emulator.
KERNEL_OPTIONS = "console=ttyS0 panic=-1 quiet no_timer_check mitigations=off tsc=reliable"
# Patience, not a measurement: a boot takes 20 s on an idle machine of two cores.
BOOT_S = 300.0
# Each look is a shell that starts, which is not cheap there.
POLL_S = 0.5
COMMAND_S = 120.0


_running: list[Machine] = []


class GuestError(Exception):
    """The guest, or QEMU around it, does not do what it was asked to."""


class Finished(NamedTuple):
    status: int
    output: str


class Machine:
    """One run of QEMU by `command`, to which console, control and the agent's port are added; files of the run lie in
    `folder`.

    As a context manager it runs from the beginning of the block, and is gone at its end whatever happened.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.console = folder / "console.log"
        self._agent_path, self._control_path = folder / "agent", folder / "control"
        self._ids = itertools.count()
        self._command = [
            # Should this process be killed, QEMU is killed too.
            *("setpriv", "--pdeathsig=KILL", "--", *command),
            *("-serial", f"file:{self.console}"),
            *("-qmp", f"unix:{self._control_path},server=on,wait=off"),
            *("-chardev", f"socket,id=agent,path={self._agent_path},server=on,wait=off"),
            *("-device", "virtio-serial-pci", "-device", "virtserialport,chardev=agent,name=magnitude.test"),
        ]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            self._control = self._connect(self._control_path)
            self._replies = self._control.makefile("rb")
            self._replies.readline()  # the greeting
            self.control("qmp_capabilities")
            self._agent = self._connect(self._agent_path)
            self._answers = self._agent.makefile("rb")
            _running.append(self)
        except BaseException:
            self.cut_power()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        _running.remove(self)
        self.cut_power()

    def cut_power(self) -> None:
        """End the machine as a power cut does: nothing is flushed, nobody is told."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _connect(self, path: Path) -> socket.socket:
        deadline = time.monotonic() + BOOT_S
        while True:
            client = socket.socket(socket.AF_UNIX)
            try:
                client.connect(str(path))
            except OSError:
                client.close()
                if self._process.poll() is not None:
                    assert self._process.stderr is not None
                    raise GuestError(f"QEMU ended: {self._process.stderr.read().decode()}") from None
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return client

    def control(self, command: str, **arguments: Any) -> Any:
        """Ask QEMU (QMP). Underscores in argument names stand for hyphens. Raises `GuestError` when it refuses."""
        request = {"execute": command, "arguments": {k.replace("_", "-"): v for k, v in arguments.items()}}
        self._control.settimeout(COMMAND_S)
        self._control.sendall(json.dumps(request).encode() + b"\n")
        while line := self._replies.readline():
            reply = json.loads(line)
            if "return" in reply:
                return reply["return"]
            if "error" in reply:
                raise GuestError(f"{command}: {reply['error']['desc']}")
        raise GuestError(f"QEMU is gone; the console's end:\n{self.console_end()}")

    def save(self, name: str) -> None:
        """Keep the whole machine under `name` in its disk."""
        if trouble := self.control("human-monitor-command", command_line=f"savevm {name}"):
            raise GuestError(f"the guest was not saved: {trouble}")

    def console_end(self) -> str:
        with contextlib.suppress(OSError):
            return self.console.read_text(errors="replace")[-3000:]
        return ""

    def run(self, command: str, *, timeout_s: float = COMMAND_S, files: dict[str, bytes] | None = None) -> Finished:
        """Run a shell command in the guest, after writing `files`. A status of 124 says that it did not end."""
        number = next(self._ids)
        request = {
            "id": number,
            "command": command,
            "timeout_s": timeout_s,
            "files": {name: base64.b64encode(data).decode() for name, data in (files or {}).items()},
        }
        self._agent.settimeout(timeout_s + BOOT_S)
        try:
            self._agent.sendall(json.dumps(request).encode() + b"\n")
            line = self._answers.readline()
        except TimeoutError:
            line = b""
        if not line:
            raise GuestError(f"the guest does not answer; the console's end:\n{self.console_end()}")
        reply = json.loads(line)
        assert reply["id"] == number
        return Finished(reply["status"], reply["output"])

    def check(self, command: str, *, timeout_s: float = COMMAND_S, files: dict[str, bytes] | None = None) -> str:
        """As `run`; the output of a command that succeeded. Raises `GuestError` otherwise."""
        done = self.run(command, timeout_s=timeout_s, files=files)
        if done.status:
            raise GuestError(f"{command!r} in the guest failed with status {done.status}:\n{done.output}")
        return done.output

    def until(self, command: str, *, timeout_s: float = COMMAND_S) -> str:
        """Repeat `command` until it succeeds. Raises `GuestError` with its last output when it does not in time."""
        deadline = time.monotonic() + timeout_s
        while (done := self.run(command, timeout_s=timeout_s)).status:
            if time.monotonic() > deadline:
                raise GuestError(f"{command!r} in the guest did not come true in {timeout_s:g} s:\n{done.output}")
            time.sleep(POLL_S)
        return done.output

    def journal(self, *options: str) -> str:
        return self.run(f"journalctl --no-pager --output=short-monotonic {' '.join(options)}").output

    def set_clock(self, wall_s: float) -> None:
        """Set the guest's wall clock. A restored guest thinks that it is still the moment when it was saved."""
        self.check(f"date --set=@{wall_s:.0f}")


class Guest(Machine):
    """A machine that is handed its kernel. `disk` is a qcow2 image that it writes to."""

    def __init__(
        self,
        image: GuestImage,
        disk: Path,
        folder: Path,
        *,
        saved: str | None = None,
        kernel_options: str = "",
        memory_mb: int = MEMORY_MB,
    ) -> None:
        """`saved` names the state in `disk` to go on from, instead of a boot. It holds for one and the same machine:
        options must be as they were when it was saved."""
        command = [
            *(QEMU, "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"),
            *("-m", str(memory_mb), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-kernel", str(image.kernel), "-initrd", str(image.initrd)),
            *("-append", f"{KERNEL_OPTIONS} {kernel_options}".strip()),
            *("-drive", f"file={disk},if=none,id=root,format=qcow2,cache=writeback"),
            *("-device", "virtio-blk-pci,drive=root", "-device", "virtio-rng-pci"),
            *("-device", "pcie-root-port,id=free-port,slot=1"),
        ]
        if saved:
            command += ["-loadvm", saved]
        super().__init__(command, folder)


def running() -> list[Machine]:
    """The guests that run now."""
    return list(_running)


def overlay(image: GuestImage, target: Path) -> Path:
    """A qcow2 disk that shows the image's and takes the writes."""
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(image.disk), str(target)], check=True
    )
    return target


def copy_disk(source: Path, target: Path) -> Path:
    """A copy with the saved states in it, sharing blocks where the file system can."""
    subprocess.run(["cp", "--reflink=auto", "--sparse=always", str(source), str(target)], check=True)
    return target
