"""The files of cpufreq that a cap needs: read a limit, write it, and say why that failed."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from magnitude.board.cap_rules import ClockRange, RefusalKind
from magnitude.board.roots import HostRoots, read_int, read_text

POLICY = re.compile(r"policy\d+")
# Names that the kernel gives to cooling by lower CPU clocks: since 5.12 cpufreq-cpu0, before that thermal-cpufreq-0,
# on ACPI Processor.
_COOLING = re.compile(r"(?:thermal-)?cpufreq-|Processor")

_KINDS: dict[int | None, RefusalKind] = {
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EROFS: "read_only",
    errno.EINVAL: "invalid",
    errno.EBUSY: "busy",  # all CPUs of the policy are offline
    errno.EAGAIN: "busy",
    errno.ENOSPC: "no_space",
    errno.ENOENT: "gone",
    errno.ENODEV: "gone",
    errno.ENOTDIR: "gone",
}


class CapRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a limit is not as asked; `detail` is a sentence for people."""

    kind: RefusalKind
    detail: str


class Refused(Exception):
    """A file refused; never leaves `board/`."""

    def __init__(self, refusal: CapRefusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


def write_limit(path: Path, khz: int) -> None:
    """Write one number in one call, as cpufreq wants it. Raises `OSError`."""
    # Without O_CREAT: a policy that has vanished must not become a file. O_TRUNC means nothing to sysfs.
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(descriptor, f"{khz}\n".encode())
    finally:
        os.close(descriptor)


class CapFiles:
    """The policies below `roots.sys`. `write` takes the place of the kernel where a test needs one that refuses."""

    def __init__(self, roots: HostRoots, write: Callable[[Path, int], None] = write_limit) -> None:
        self._policies = roots.sys / "devices/system/cpu/cpufreq"
        self._cooling = roots.sys / "class/thermal"
        self._write = write

    def limit_path(self, policy: str) -> Path:
        return self._policies / policy / "scaling_max_freq"

    def limit_khz(self, policy: str) -> int:
        """The limit in force. Raises `Refused`."""
        path = self.limit_path(policy)
        if not POLICY.fullmatch(policy):
            raise Refused(CapRefusal(kind="gone", detail=f"there is no policy {policy}"))
        try:
            text = _read_start(path)
        except OSError as error:
            raise Refused(_refusal_of(path, error, reading=True)) from error
        khz = _number(text)
        if khz is None:
            raise Refused(CapRefusal(kind="unreadable", detail=f"{path} says {text[:40]!r}, which is no clock"))
        return khz

    def set_limit(self, policy: str, khz: int) -> None:
        """Raises `Refused`."""
        path = self.limit_path(policy)
        try:
            self._write(path, khz)
        except OSError as error:
            raise Refused(_refusal_of(path, error)) from error

    def clock_range(self, policy: str) -> ClockRange:
        folder = self._policies / policy
        words = (read_text(folder / "scaling_available_frequencies") or "").split()
        return ClockRange(
            min_khz=read_int(folder / "cpuinfo_min_freq"),
            max_khz=read_int(folder / "cpuinfo_max_freq"),
            opps_khz=tuple(sorted({khz for word in words if (khz := _number(word))})),
        )

    def kernel_limits(self) -> bool:
        """Whether the kernel lowers CPU clocks for heat now."""
        try:
            devices = list(self._cooling.glob("cooling_device*"))
        except OSError:
            return False
        return any(
            _COOLING.match(read_text(device / "type") or "") and (read_int(device / "cur_state") or 0) > 0
            for device in devices
        )


def _read_start(path: Path) -> str:
    """A kernel file of one short line. Raises `OSError`; never waits, and never reads a file without an end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 64).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)


def _number(text: str) -> int | None:
    """A clock; None for anything else, such as `<unsupported>` or 0."""
    return int(text) or None if text.isascii() and text.isdecimal() else None


def _refusal_of(path: Path, error: OSError, *, reading: bool = False) -> CapRefusal:
    kind = _KINDS.get(error.errno, "failed")
    if reading and kind not in ("gone", "busy"):
        kind = "unreadable"
    verb = "read" if reading else "written"
    return CapRefusal(kind=kind, detail=f"{path} cannot be {verb}: {error.strerror or error}")
