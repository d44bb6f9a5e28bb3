"""An emulated Arm board whose firmware is the real U-Boot (Debian's package), with a card as our images have it.

The kernels on it are a few instructions that say which slot they came from and power the machine off.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

from tests.yocto.uboot_board import SCRIPT, Start

UBOOT = Path("/usr/lib/u-boot/qemu_arm64/u-boot.bin")
PROGRAMS = ("qemu-system-aarch64", "mkimage", "fw_setenv", "sfdisk", "mkfs.vfat", "mcopy", "mke2fs")
MIB = 1024 * 1024
OFFSETS = (0x3F0000, 0x3F8000)
SIZE = 0x8000
# Start and length in MiB, as on our images but small.
BOOT, ROOT_A, ROOT_B = (8, 16), (24, 16), (40, 16)
DISK_MIB = 64


def missing() -> list[str]:
    """What this machine lacks for it."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin") is None]
    return lacking + ([] if UBOOT.exists() else [str(UBOOT)])


def kernel(text: str) -> bytes:
    """An arm64 image that writes `text` to the machine's serial port and powers it off.

    Header: Documentation/arch/arm64/booting.rst. The port is QEMU's PL011 at 0x09000000; power off is PSCI's
    SYSTEM_OFF (0x84000008) by a hypervisor call, as QEMU's "virt" machine wants it.
    """
    code = [0xD2A12001]  # movz x1, #0x0900, lsl #16
    for byte in text.encode():
        code += [0x52800002 | byte << 5, 0xB9000022]  # movz w2, #byte; str w2, [x1]
    code += [0x52800100, 0x72B08000, 0xD4000002, 0x14000000]  # movz w0, #8; movk w0, #0x8400, lsl #16; hvc #0; b .
    body = struct.pack(f"<{len(code)}I", *code)
    jump = 0x14000010  # over the header of 64 bytes
    flags = 0xA  # 4 KiB pages, may lie anywhere: as every kernel of today
    header = struct.pack("<IIQQQQQQ4sI", jump, 0, 0, 64 + len(body), flags, 0, 0, 0, b"ARM\x64", 0)
    return header + body


def run(*words: str | Path, given: str | None = None) -> str:
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "MTOOLS_SKIP_CHECK": "1", "LC_ALL": "C"}
    done = subprocess.run(words, input=given, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


class QemuBoard:
    def __init__(self, folder: Path, table: str = "gpt") -> None:
        self.folder = folder
        self.disk = folder / "disk.img"
        with self.disk.open("wb") as file:
            file.truncate(DISK_MIB * MIB)
        lines = [f"label: {table}", f"label-id: {'0x6d61676e' if table == 'dos' else IDENTITY.format(0)}"]
        for number, (start, length) in enumerate((BOOT, ROOT_A, ROOT_B), start=1):
            identity = "" if table == "dos" else f", uuid={IDENTITY.format(number)}"
            lines.append(f"start={start}MiB, size={length}MiB, type={'L' if table == 'gpt' else '83'}{identity}")
        if table == "dos":
            # Raspberry Pi's boot ROM and U-Boot read the FAT by its type.
            lines[2] = lines[2].replace("type=83", "type=c, bootable")
        run("sfdisk", "--quiet", self.disk, given="\n".join(lines) + "\n")
        script = folder / "boot.scr"
        run("mkimage", "-A", "arm64", "-O", "linux", "-T", "script", "-C", "none", "-d", SCRIPT, script)
        fat = folder / "boot.img"
        with fat.open("wb") as file:
            file.truncate(BOOT[1] * MIB)
        run("mkfs.vfat", "-n", "MAGBOOT", fat)
        run("mcopy", "-i", fat, script, "::boot.scr")
        self._place(fat, BOOT[0])
        self.fill("A")
        self.fill("B")

    def _place(self, image: Path, at_mib: int) -> None:
        with self.disk.open("r+b") as file:
            file.seek(at_mib * MIB)
            file.write(image.read_bytes())

    def fill(self, slot: str, *, with_kernel: bool = True) -> None:
        """Makes the slot's file system: its settings, and a kernel unless that is left out."""
        tree = self.folder / f"root-{slot}"
        shutil.rmtree(tree, ignore_errors=True)
        (tree / "boot").mkdir(parents=True)
        (tree / "boot/magnitude.env").write_text("slot_kernel=Image\nslot_fdt=\nslot_args=psi=1\n")
        if with_kernel:
            (tree / "boot/Image-1").write_bytes(kernel(f"STARTED {slot}\n"))
            # As a root of ours has it.
            (tree / "boot/Image").symlink_to("Image-1")
        start, length = ROOT_A if slot == "A" else ROOT_B
        image = self.folder / f"root-{slot}.img"
        image.unlink(missing_ok=True)
        features = ["-O", "^metadata_csum_seed,^orphan_file"]
        command = ["mke2fs", "-q", "-t", "ext4", "-d", str(tree)]
        try:
            run(*command, *features, image, f"{length}M")
        except AssertionError:
            # Before e2fsprogs 1.47 neither feature exists.
            run(*command, image, f"{length}M")
        self._place(image, start)

    def state(self, copy: int = 0) -> dict[str, str]:
        """One copy of the boot state, by the form that U-Boot and fw_setenv share; nothing when it is broken."""
        with self.disk.open("rb") as file:
            file.seek(OFFSETS[copy])
            raw = file.read(SIZE)
        if zlib.crc32(raw[4:]) != int.from_bytes(raw[:4], "little"):
            return {}
        return dict(item.decode().split("=", 1) for item in raw[4:].split(b"\0\0")[0].split(b"\0") if item)

    def break_copy(self, copy: int) -> None:
        with self.disk.open("r+b") as file:
            file.seek(OFFSETS[copy] + 8)
            file.write(b"torn")

    def fw_setenv(self, **values: str) -> None:
        """Linux's own tool, as RAUC calls it."""
        config = self.folder / "fw_env.config"
        config.write_text(f"{self.disk} {OFFSETS[0]:#x} {SIZE:#x}\n")
        for name, value in values.items():
            run("fw_setenv", "-c", config, name, value)

    def start(self) -> Start:
        """One start, until the kernel has powered the machine off or U-Boot has reset it."""
        command = [
            *("qemu-system-aarch64", "-M", "virt", "-cpu", "cortex-a57", "-accel", "tcg", "-m", "256"),
            *("-nographic", "-no-reboot", "-nic", "none", "-bios", str(UBOOT)),
            *("-drive", f"if=none,id=card,format=raw,file={self.disk}", "-device", "virtio-blk-device,drive=card"),
        ]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
        said = done.stdout.decode("utf-8", "replace").replace("\r", "")
        started = re.search(r"^STARTED (\w)", said, flags=re.MULTILINE)
        args = re.findall(r"^Magnitude: (.*rauc\.slot=.*)$", said, flags=re.MULTILINE)
        return Start(
            slot=started[1] if started else None, args=args[-1] if args else "", said=said, status=done.returncode
        )


IDENTITY = "6d61676e-0001-4000-8000-{:012d}"
