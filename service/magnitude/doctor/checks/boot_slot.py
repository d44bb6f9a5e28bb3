"""On a device with two root slots: is the root the slot that was started, and is a Raspberry Pi's boot EEPROM new
enough to be relied on?

Whoever marks a slot good marks the one that the kernel's command line names. If another root is mounted, the mark
goes to the wrong slot, and the next start may lead nowhere (Rtone/raspberrypi-firmware-rauc-bootloader-backend#2).
"""

from __future__ import annotations

import re
import time

from magnitude.board import HostRoots
from magnitude.board.roots import read_text
from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding

# Number and name of the slots' partitions, on every image (docs/updates.md). U-Boot's script tells the kernel an
# identity that ends in the number, GRUB the name.
SLOT_PARTITIONS = {"A": (2, "root-a"), "B": (3, "root-b")}
_ROOT = re.compile(r"PARTUUID=\S*?0*(?P<number>\d+)|PARTLABEL=(?P<name>\S+)")

# Raspberry Pi's release notes of the Pi 5's EEPROM: before 5 January 2024 files with short names only were missed,
# before the 22nd cards were not always found, and before 13 May 2024 the partition that it had started from was told
# wrongly. Seconds since 1970, midnight UTC.
OLDEST_EEPROM_S = 1715558400


def check(context: DoctorContext) -> Finding:
    words = (read_text(context.roots.proc / "cmdline") or "").split()
    return judge(words, eeprom_built_s(context.roots))


def judge(words: list[str], eeprom_s: int | None) -> Finding:
    """`words` are those of the kernel's command line, `eeprom_s` when the EEPROM was built (None: no Pi 5)."""
    slot = _last(words, "rauc.slot=")
    if slot is None:
        return Finding(level="ok", title="This system has no root slots")
    root = _last(words, "root=") or ""
    lines = [f"slot: {slot}", f"root: {root or 'unknown'}"]
    if eeprom_s is not None:
        lines.append(f"boot EEPROM of {_date(eeprom_s)}")
    if not _is_of(slot, root):
        return Finding(
            level="error",
            title=f"The system was started as slot {slot}, but its root is another partition",
            detail="\n".join(lines),
            advice="Look for a second root= in cmdline.txt on the boot partition and take it out; until then no slot "
            "can be marked good",
        )
    if eeprom_s is not None and eeprom_s < OLDEST_EEPROM_S:
        return Finding(
            level="warning",
            title=f"The boot EEPROM is of {_date(eeprom_s)}: older than {_date(OLDEST_EEPROM_S)}, it may miss files "
            "on the boot partition",
            detail="\n".join(lines),
            advice="Update it once with Raspberry Pi Imager: Misc utility images, Bootloader, SD card boot",
        )
    return Finding(level="ok", title=f"Slot {slot} runs from its own partition", detail="\n".join(lines))


def _is_of(slot: str, root: str) -> bool:
    found = _ROOT.fullmatch(root)
    if found is None or slot not in SLOT_PARTITIONS:
        return False
    number, name = SLOT_PARTITIONS[slot]
    return found["name"] == name if found["number"] is None else int(found["number"]) == number


def eeprom_built_s(roots: HostRoots) -> int | None:
    """When a Raspberry Pi 5's boot EEPROM was built, in seconds since 1970; None on other boards."""
    tree = roots.proc / "device-tree"
    try:
        if b"brcm,bcm2712" not in (tree / "compatible").read_bytes().split(b"\0"):
            return None
        raw = (tree / "chosen/bootloader/build-timestamp").read_bytes()
    except OSError:
        return None
    # Device trees are big-endian.
    return int.from_bytes(raw, "big") if len(raw) == 4 else None


def _last(words: list[str], key: str) -> str | None:
    """The kernel takes the last of several."""
    return next((word.removeprefix(key) for word in reversed(words) if word.startswith(key)), None)


def _date(seconds: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
