"""A board whose U-Boot is a POSIX shell: the boot script's own text runs, with stand-ins for U-Boot's commands.

It shows what the script decides. What U-Boot makes of the same text, its parser and its checksums, is shown by
`tests/yocto/test_boot_script_uboot.py` in an emulated machine.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import msgspec

HERE = Path(__file__).parent
LAYER = HERE.parent.parent / "yocto/meta-magnitude"
SCRIPT = LAYER / "recipes-bsp/magnitude-boot/files/boot.cmd"
# The sectors of the two copies, as the script has them.
FIRST, SECOND = "1f80", "1fc0"
PARTITIONS = {"A": 2, "B": 3}


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """How a start went: the slot whose kernel runs (none after a power cut or a reset), its command line, what was
    said."""

    slot: str | None
    args: str
    said: str
    status: int


class Board:
    """A card in a folder: two copies of the boot state and two root slots."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("blocks", "slots/2/boot", "slots/3/boot"):
            (folder / name).mkdir(parents=True)
        self.fill("A")
        self.fill("B")

    def fill(self, slot: str, *, kernel: bool = True, settings: str = "slot_kernel=Image\nslot_args=psi=1\n") -> None:
        """Puts a system into a slot, or only parts of one."""
        boot = self.folder / f"slots/{PARTITIONS[slot]}/boot"
        for old in boot.iterdir():
            old.unlink()
        if settings:
            (boot / "magnitude.env").write_text(settings)
        if kernel:
            (boot / "Image").write_text(f"{slot}\n")

    def state(self, block: str = FIRST) -> dict[str, str]:
        """What one copy holds; nothing when it is missing or broken."""
        path = self.folder / "blocks" / block
        lines = path.read_text().splitlines() if path.exists() else ["torn"]
        return dict(line.split("=", 1) for line in lines[1:]) if lines[0] == "good" else {}

    def set_state(self, *blocks: str, **values: str) -> None:
        """Changes values as Linux's fw_setenv does: in the copies named (the first alone, if none is named)."""
        for block in blocks or (FIRST,):
            merged = self.state(block) | values
            text = "".join(f"{name}={value}\n" for name, value in merged.items() if value)
            (self.folder / "blocks" / block).write_text("good\n" + text)

    def break_copy(self, block: str) -> None:
        (self.folder / "blocks" / block).write_text("torn\n")

    def start(self, **variables: str) -> Start:
        """One start. `cut_at="1"` fails the power in that write of the state, `protected="1"` a card that cannot be
        written, `firmware_args` what the firmware's device tree has as command line."""
        given = "".join(f"{name}='{value}'\n" for name, value in variables.items())
        text = f"board='{self.folder}'\n{given}{(HERE / 'uboot_shell.sh').read_text()}{SCRIPT.read_text()}"
        done = subprocess.run(["/bin/sh"], input=text, capture_output=True, text=True, timeout=60)
        started = re.search(r"^STARTED (\w)", done.stdout, flags=re.MULTILINE)
        args = re.findall(r"^Magnitude: (.*rauc\.slot=.*)$", done.stdout, flags=re.MULTILINE)
        return Start(
            slot=started[1] if started else None,
            args=args[-1] if args else "",
            said=done.stdout + done.stderr,
            status=done.returncode,
        )
