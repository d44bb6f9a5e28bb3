"""A real systemd in a container: boot a root file system, run commands in it, talk HTTP to it, power it off.

    with Container(root) as board:
        board.run("systemctl", "status", "magnitude")

The container writes into an overlay, which is gone afterwards; the root stays as it was. Works as root on a host
without systemd as its own process 1; the way for a host with it is written after the manual and untried.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import msgspec
import rootfs

CGROUPS = Path("/sys/fs/cgroup")
# Booting takes half a second, and some on a machine that does much else.
BOOT_S = 60.0
COMMAND_S = 120.0
# systemd kills what does not end within 90 s of a power-off.
POWER_OFF_S = 120.0

_numbers = itertools.count(1)
_running: list[Container] = []

# How systemd-nspawn ends when the system wants to be booted again and nobody has registered it.
REBOOTED = 133


class BootFailed(Exception):
    """The container did not come up or did not end, with the end of its console."""


class Done(msgspec.Struct, frozen=True):
    """A command that has ended; `text` is what it printed on both streams."""

    status: int
    text: str


def why_not() -> str:
    """Why this machine cannot run these tests; empty when it can."""
    if os.geteuid() != 0:
        return "needs root"
    needed = ("systemd-nspawn", "mmdebstrap", "unshare", "nsenter", "setpriv")
    if missing := [name for name in needed if not shutil.which(name)]:
        return f"{', '.join(missing)} not found: run scripts/system-test-setup"
    if not any((folder / "cgroup.controllers").exists() for folder in (CGROUPS, CGROUPS / "unified")):
        return "no version 2 cgroup tree below /sys/fs/cgroup"
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        return "the kernel has no overlay file system"
    if "\nID=debian\n" not in "\n" + Path("/etc/os-release").read_text():
        return "the host is no Debian, whose archives the root file systems come from"
    return ""


def until(fact: Callable[[], object], *, within_s: float, what: str) -> None:
    """Wait until `fact` is true; fail with `what` was waited for."""
    deadline = time.monotonic() + within_s
    while not fact():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within_s:.0f} s in vain: {what}")
        time.sleep(0.05)


def running() -> list[Container]:
    """The systems that are booted now."""
    return list(_running)


class Container:
    """One booted system, from `with` to the end of its block. `options` go to systemd-nspawn as they are; `prepare`
    gets the container's root folder before it boots."""

    def __init__(
        self, root: Path, *, options: Sequence[str] = (), prepare: Callable[[Path], None] | None = None
    ) -> None:
        self.name = f"magnitude-{os.getpid()}-{next(_numbers)}"
        self.folder = rootfs.cache_folder() / "running" / self.name
        self.leader = 0
        self._root = root
        self._options = options
        self._prepare = prepare
        self._process: subprocess.Popen[bytes] | None = None
        # Where systemd is process 1, nspawn asks it for a cgroup; elsewhere we make one in each of its trees.
        hierarchies = [] if Path("/run/systemd/system").exists() else [CGROUPS / "unified", CGROUPS / "systemd"]
        if not hierarchies or not hierarchies[0].exists():
            hierarchies = [CGROUPS] if hierarchies else []
        self._cgroups = [folder / self.name for folder in hierarchies if folder.exists()]

    def __enter__(self) -> Self:
        try:
            self._start()
            until(self._booted, within_s=BOOT_S, what="the container boots")
            _running.append(self)
        except BaseException as error:
            console = self.console
            self.close()
            if isinstance(error, AssertionError):
                raise BootFailed(f"{error}\n{console[-3000:]}") from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    @property
    def console(self) -> str:
        return self._console.read_text(errors="replace") if self._console.exists() else ""

    def path(self, inside: str) -> Path:
        """A path of the running container, seen from here."""
        return Path(f"/proc/{self.leader}/root") / inside.lstrip("/")

    def run(self, *command: str, check: bool = True, within_s: float = COMMAND_S) -> Done:
        """Run a command in the container as root."""
        done = subprocess.run(
            [*self._enter, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=within_s,
            check=False,
        )
        text = done.stdout.decode(errors="replace")
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)} ended with status {done.returncode}:\n{text}")
        return Done(done.returncode, text)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a command in the container; the caller waits for its end."""
        return subprocess.Popen(
            [*self._enter, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def show(self, unit: str, name: str) -> str:
        """A property of a unit, as `systemctl show` says it."""
        return self.run("systemctl", "show", "--property", name, "--value", unit).text.strip()

    def journal(self, *options: str) -> str:
        return self.run("journalctl", "--no-pager", "--output=short-monotonic", *options).text

    def write(self, inside: str, text: str) -> None:
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def client(self, socket: str, *, timeout_s: float = COMMAND_S) -> httpx.Client:
        """An HTTP client on a unix socket of the container."""
        transport = httpx.HTTPTransport(uds=str(self.path(socket)))
        return httpx.Client(transport=transport, base_url="http://localhost", timeout=timeout_s)

    def wait_reboot(self, within_s: float) -> None:
        """Wait until the system has gone down to reboot, and bring it up again with its files as it left them."""
        process = self._process
        assert process is not None
        until(lambda: process.poll() is not None, within_s=within_s, what="the container goes down")
        assert process.returncode == REBOOTED, self.console[-3000:]
        until(self._removed, within_s=10, what=f"the cgroups {self.name} empty")
        self._boot()
        until(self._booted, within_s=BOOT_S, what="the container boots again")

    def close(self) -> None:
        """Power off, wait for the end, and leave nothing behind."""
        if self in _running:
            _running.remove(self)
        try:
            if self._process is not None:
                self._power_off(self._process)
        finally:
            until(self._removed, within_s=10, what=f"the cgroups {self.name} empty")
            shutil.rmtree(self.folder, ignore_errors=True)
            self._console.unlink(missing_ok=True)

    @property
    def _console(self) -> Path:
        return self.folder.with_name(f"{self.name}.console")

    @property
    def _enter(self) -> list[str]:
        namespaces = ["-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w"]
        environ = ["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8"]
        return ["nsenter", "-t", str(self.leader), *namespaces, "--", "env", "-i", *environ, "SYSTEMD_COLORS=0"]

    def _start(self) -> None:
        self._sweep()
        upper, work, merged = (self.folder / name for name in ("upper", "work", "merged"))
        for folder in (upper, work, merged):
            folder.mkdir(parents=True)
        if self._prepare:
            self._prepare(upper)
        self._boot()

    def _boot(self) -> None:
        upper, work, merged = (self.folder / name for name in ("upper", "work", "merged"))
        for cgroup in self._cgroups:
            cgroup.mkdir(parents=True)
        overlay = f"lowerdir={self._root},upperdir={upper},workdir={work}"
        lines = ["set -e", *(f"echo $$ > {cgroup}/cgroup.procs" for cgroup in self._cgroups)]
        # In a mount namespace of its own, the overlay goes with its last process.
        lines += [f"mount -t overlay overlay -o {overlay} {merged}", 'exec "$@"']
        own_cgroup = ["--keep-unit"] if self._cgroups else []
        # Should this process be killed, nspawn is told to end and powers the container off.
        command = [
            "setpriv",
            "--pdeathsig=TERM",
            "--",
            "systemd-nspawn",
            "--quiet",
            "--boot",
            f"--directory={merged}",
        ]
        command += [f"--machine={self.name}", "--register=no", *own_cgroup, "--private-network"]
        command += ["--console=read-only", "--link-journal=no", *self._options, "systemd.unified_cgroup_hierarchy=1"]
        with self._console.open("wb") as console:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--propagation=private", "--", "sh", "-c", "\n".join(lines), "sh", *command],
                env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )

    def _booted(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise BootFailed(f"systemd-nspawn ended with status {self._process.returncode}\n{self.console[-3000:]}")
        for pid in _descendants(self._process.pid):
            if _is_init(pid):
                self.leader = pid
                return self.path("/run/systemd/private").exists()
        return False

    def _power_off(self, process: subprocess.Popen[bytes]) -> None:
        """Ask the container's systemd to power off. It is never killed: its processes would stay in their cgroups."""
        if self.leader and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.leader, signal.SIGRTMIN + 4)
        elif process.poll() is None:
            process.terminate()
        try:
            process.wait(POWER_OFF_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(POWER_OFF_S)
            raise BootFailed(f"the container did not power off\n{self.console[-3000:]}") from None

    def _removed(self) -> bool:
        for cgroup in self._cgroups:
            _remove_groups(cgroup)
        return not any(cgroup.exists() for cgroup in self._cgroups)

    def _sweep(self) -> None:
        """Remove what a test run that was killed has left. Its systems have powered themselves off."""
        for place in (*(cgroup.parent for cgroup in self._cgroups), self.folder.parent):
            for left in place.glob("magnitude-*-*"):
                if Path(f"/proc/{left.name.split('-')[1]}").exists():
                    continue
                if place == self.folder.parent:
                    shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
                else:
                    _remove_groups(left)


def _remove_groups(cgroup: Path) -> None:
    """Remove a tree of control groups as far as no process is in it."""
    for folder, _, _ in os.walk(cgroup, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()


def _descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield int(child)
            yield from _descendants(int(child))


def _is_init(pid: int) -> bool:
    """Whether a process is process 1 of a namespace of its own."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return line.split()[-1] == "1" and len(line.split()) > 2
    return False
