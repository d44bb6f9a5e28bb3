"""What a Raspberry Pi's firmware says about supply and heat.

It limits clocks by itself, and what cpufreq then shows is what the kernel asked for. So it is asked, in the same way
as `vcgencmd get_throttled` does; always without the argument that clears the history, which belongs to whoever looks
for a fault.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from magnitude.board.kernel_file import KernelFile, NoSample, fault_of
from magnitude.board.roots import HostRoots
from magnitude.board.snapshot import Firmware, FirmwareFlags

log = logging.getLogger("magnitude.firmware")

MAILBOX = Path("/dev/vcio")
COMMAND = ("vcgencmd", "get_throttled")
# It answers within milliseconds, unless the firmware itself hangs.
COMMAND_LIMIT_S = 1.0
HINT = (
    "Install vcgencmd, or give the service access to /dev/vcio (on Raspberry Pi OS: its user in the group `video`, "
    "and in the unit DeviceAllow=/dev/vcio)"
)

_WORD = re.compile(r"(?:throttled=)?0x([0-9a-fA-F]{1,8})")
# Bits (raspberrypi/documentation, vcgencmd get_throttled); those of since boot are 16 places higher.
_BITS = {"under_voltage": 0, "clock_capped": 1, "throttled": 2, "soft_limit": 3}
_SINCE_BOOT = 16

# The mailbox's property interface (drivers/char/broadcom/vcio.c) and its tag for a command with a text answer, as
# vcgencmd (raspberrypi/utils) uses them: size, request, tag, bytes for the answer, bytes of it, its error, text, end.
_COMMAND_TAG = 0x00030080
_TEXT_BYTES = 1024
_HEAD = struct.Struct("=6I")
_DONE = 0x80000000


def parse_throttled(text: str) -> Firmware:
    """The flags in `throttled=0x50005`. Raises `ValueError` for anything else: an error is not the word 0."""
    found = _WORD.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"no flags: {text.strip()[:80]!r}")
    word = int(found[1], 16)
    return Firmware(now=_flags(word), since_boot=_flags(word >> _SINCE_BOOT))


def _flags(word: int) -> FirmwareFlags:
    return FirmwareFlags(**{name: bool(word >> place & 1) for name, place in _BITS.items()})


class FirmwareReader:
    """Asks by the mailbox, else by the command, else reads what the kernel's driver was last told.

    `mailbox` and `command` (None, empty: not asked) are this machine's own, so only for its own roots. The kernel's
    file comes last: a kernel logs a warning when it is read first, and its driver has the firmware clear what it
    reports, every two seconds. So of that file the history is what this reader has seen itself.
    """

    key = "firmware"

    def __init__(
        self, roots: HostRoots, *, mailbox: Path | None = None, command: Sequence[str] = (), hint: str = HINT
    ) -> None:
        self._mailbox = mailbox
        self._command = tuple(command)
        self._files = [KernelFile(file) for file in throttled_files(roots)]
        self._seen = FirmwareFlags()
        self._hint = hint
        self._reason = ""

    def read(self) -> Firmware:
        """Unknown (`now` None, with the hint) whenever nobody answers sensibly. May take a second."""
        reasons = []
        for ask in (self._ask_mailbox, self._ask_command, self._ask_file):
            try:
                answer = ask()
            except (OSError, ValueError, NoSample, subprocess.SubprocessError) as error:
                said = fault_of(error) if isinstance(error, OSError) else str(error)
                reasons.append(f"{ask.__name__[5:]}: {said}")
                continue
            if answer is not None:
                if self._reason:
                    log.info("the firmware answers again")
                    self._reason = ""
                return answer
        if not self._reason and reasons:
            log.info("what the firmware does about supply and heat is unknown: %s", "; ".join(reasons))
        self._reason = "; ".join(reasons)
        return Firmware(hint=self._hint)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _ask_mailbox(self) -> Firmware | None:
        if self._mailbox is None:
            return None
        fd = os.open(self._mailbox, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return parse_throttled(_gencmd(fd, "get_throttled"))
        finally:
            os.close(fd)

    def _ask_command(self) -> Firmware | None:
        if not self._command:
            return None
        done = subprocess.run(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
        said = done.stdout.decode("utf-8", "replace")
        if done.returncode != 0:
            raise ValueError(f"{self._command[0]} failed ({done.returncode}): {said.strip()[:80]!r}")
        return parse_throttled(said)

    def _ask_file(self) -> Firmware | None:
        for file in self._files:
            now = parse_throttled(f"0x{file.read()}")
            if now.now is None or now.since_boot is None:
                continue
            self._seen = _both(self._seen, _both(now.now, now.since_boot))
            return Firmware(now=now.now, since_boot=self._seen)
        return None


def _both(one: FirmwareFlags, other: FirmwareFlags) -> FirmwareFlags:
    return FirmwareFlags(**{name: getattr(one, name) or getattr(other, name) for name in _BITS})


def throttled_files(roots: HostRoots) -> list[Path]:
    """Where kernels show it: `soc/soc:firmware` on a 4, `soc@107c000000/soc@107c000000:firmware` on a 5."""
    try:
        return sorted((roots.sys / "devices/platform").glob("soc*/soc*firmware/get_throttled"))
    except OSError:
        return []


def _gencmd(fd: int, command: str) -> str:
    """Raises `OSError` and `ValueError`."""
    size = _HEAD.size + _TEXT_BYTES + 4
    message = bytearray(size)
    _HEAD.pack_into(message, 0, size, 0, _COMMAND_TAG, _TEXT_BYTES, 0, 0)
    message[_HEAD.size : _HEAD.size + len(command)] = command.encode("ascii")
    fcntl.ioctl(fd, mailbox_request(), message, True)
    _, state, _, _, _, error = _HEAD.unpack_from(message, 0)
    if state != _DONE or error:
        raise ValueError(f"the firmware refused ({state:#x}, {error})")
    return bytes(message[_HEAD.size : -4]).split(b"\0", 1)[0].decode("ascii", "replace")


def mailbox_request() -> int:
    """IOCTL_MBOX_PROPERTY, _IOWR(100, 0, char *): the size of a pointer is part of the number."""
    return 3 << 30 | struct.calcsize("P") << 16 | 100 << 8
