"""How QEMU is started with an image."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = {"amd64": "qemu-system-x86_64", "arm64": "qemu-system-aarch64"}
FIRMWARE = {"amd64": "/usr/share/OVMF/OVMF_CODE_4M.fd", "arm64": "/usr/share/qemu-efi-aarch64/QEMU_EFI.fd"}
# What the firmware remembers, forgotten at the end; with nowhere to put it, it would write to the boot partition.
MEMORY = "/usr/share/OVMF/OVMF_VARS_4M.fd"
# arm64: the cores of a Raspberry Pi 5 and the large ones of an RK3588.
MACHINES = {"amd64": ("q35", "max"), "arm64": ("virt", "cortex-a76")}
# The chat model with its KV memory does not fit beside the rest into 2 GB.
MEMORY_MB = 3072
PORT = 11500


def machine(architecture: str) -> list[str]:
    """The machine without a disk, a network card or a console. Emulated in software, which works everywhere."""
    board, processor = MACHINES[architecture]
    return [
        PROGRAMS[architecture],
        *("-machine", board, "-accel", "tcg,thread=multi", "-cpu", processor, "-smp", "2", "-m", str(MEMORY_MB)),
        *_firmware(architecture),
        *("-nodefaults", "-no-user-config", "-display", "none"),
        *("-device", "virtio-rng-pci"),
    ]


def _firmware(architecture: str) -> list[str]:
    if architecture != "amd64":
        return ["-bios", FIRMWARE[architecture]]
    return [
        *("-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={FIRMWARE[architecture]}"),
        *("-drive", f"if=pflash,unit=1,format=raw,snapshot=on,file={MEMORY}"),
    ]


def network(port: int) -> list[str]:
    """A card whose guest is reached at `port` of this machine's loopback."""
    return [
        *("-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{port}-:{PORT}"),
        *("-device", "virtio-net-pci,netdev=net,romfile="),  # no boot over the network
    ]


def disk(path: Path) -> list[str]:
    return [
        *("-drive", f"file={path},if=none,id=disk,format=raw,cache=writeback"),
        *("-device", "virtio-blk-pci,drive=disk,bootindex=0"),
    ]


def command(architecture: str, image: Path) -> str:
    """One line for a person: the console is the terminal, Ctrl-A X ends the machine."""
    words: Sequence[str] = [*machine(architecture), *network(PORT), *disk(image), "-serial", "mon:stdio"]
    return shlex.join(words)
