"""The contents of the partitions: root, data and boot, each as a file that is copied to its place."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from image.guest.debian import run
from image.guest.partitions import BOOT_LABEL, DATA_LABEL, MIB
from image.guest.tree import FILES, fill_in
from image.guest.workshop import Workshop

# GRUB reads the kernel from the root, and knows neither of these newer features for certain.
PLAIN = "^orphan_file,^metadata_csum_seed"
# Of the root: blocks of directories and of the file system itself, beside what the files take.
SLACK_SHARE, SLACK_BYTES = 0.06, 16 * MIB
# What the boot loader has to be able to do: read both kinds of partition, choose, count, start a kernel.
GRUB_MODULES = (
    "part_gpt",
    "fat",
    "ext2",
    "normal",
    "configfile",  # `source`
    "linux",
    "test",
    "regexp",
    "loadenv",
    "echo",
    "sleep",
    "reboot",
)
# The name under which firmware looks for a boot loader on a disk that it has not been told about, and GRUB's own name
# of the format (UEFI specification, "Removable media boot behavior").
EFI_NAMES = {"amd64": ("BOOTX64.EFI", "x86_64-efi"), "arm64": ("BOOTAA64.EFI", "arm64-efi")}
# amd64 in emulation on a busy host: the kernel's check of its timer fails, and what it measures as the frequency of
# the processor's counter may be many times too low, so that the clock runs away. It is read from a device instead.
OWN_OPTIONS = {"amd64": "console=ttyS0 no_timer_check tsc=unstable", "arm64": "console=ttyAMA0"}
# A panic counts as a failed boot. Pressure figures are what the memory ladder reads. A file system that is damaged is
# repaired as far as can be: nobody is there to be asked. The name of the network card does not matter here, and
# renaming it takes time.
KERNEL_OPTIONS = "{own} panic=10 psi=1 fsck.repair=yes net.ifnames=0 quiet"
ENVIRONMENT_BYTES = 1024
# The image comes with A, and B is empty.
FIRST_ENVIRONMENT = {
    "ORDER": "A B",
    **{"A_OK": "1", "A_TRY": "0", "A_LEFT": "3"},
    **{"B_OK": "0", "B_TRY": "0", "B_LEFT": "3"},
}


def used_bytes(tree: Path) -> int:
    """What the files of `tree` take on a disk with blocks of 4 KiB."""
    return int(run("du", "--summarize", "--block-size=1", tree).split()[0])


def make_root_image(workshop: Workshop, folder: Path, tree: str, target: str) -> None:
    """`target` in `folder`: the file system of the slot, as small as the files allow. Read-only, so no journal."""
    size = int(used_bytes(folder / tree) * (1 + SLACK_SHARE)) + SLACK_BYTES
    files = sum(1 for _ in (folder / tree).rglob("*"))
    workshop.run(
        folder, "mke2fs", "-q", "-t", "ext4", "-b", "4096", "-m", "0", "-L", "magnitude-root", "-N", str(files + 512),
        "-O", f"^has_journal,{PLAIN}", "-d", tree, target, f"{-(-size // MIB)}M",
    )  # fmt: skip


def make_data_image(workshop: Workshop, folder: Path, target: str, size_bytes: int, config: str) -> None:
    """`target` in `folder`: a data partition with nothing but `config` as the user's own configuration. All other
    folders are made by the first boot."""
    tree = folder / "data"
    (tree / "etc/magnitude").mkdir(parents=True)
    (tree / "etc/magnitude/magnitude.yaml").write_text(config)
    workshop.run(
        folder, "mke2fs", "-q", "-t", "ext4", "-b", "4096", "-m", "0", "-L", DATA_LABEL, "-O", PLAIN, "-d", "data",
        target, f"{size_bytes // MIB}M",
    )  # fmt: skip
    shutil.rmtree(tree)


def make_boot_image(
    workshop: Workshop,
    folder: Path,
    target: str,
    size_bytes: int,
    architecture: str,
    grub: Path,
    variables: Mapping[str, str] = FIRST_ENVIRONMENT,
) -> None:
    """`target` in `folder`: FAT32 with the boot loader, its choice of a slot, and room for the user's own files.
    `grub`: the folder of GRUB's modules; `variables`: what it finds in its environment."""
    name, grub_format = EFI_NAMES[architecture]
    tree = folder / "boot"
    for part in ("EFI/BOOT", "grub", "magnitude", "modules"):
        (tree / part).mkdir(parents=True)
    shutil.copytree(grub / grub_format, tree / "modules", dirs_exist_ok=True)
    workshop.run(
        folder, "grub-mkimage", "-d", "boot/modules", "-O", grub_format, "-p", "/grub", "-o", f"boot/EFI/BOOT/{name}",
        *GRUB_MODULES,
    )  # fmt: skip
    shutil.rmtree(tree / "modules")
    options = KERNEL_OPTIONS.format(own=OWN_OPTIONS[architecture])
    (tree / "grub/grub.cfg").write_text(fill_in((FILES / "grub.cfg").read_text(), {"KERNEL_OPTIONS": options}))
    (tree / "grub/grubenv").write_bytes(environment(variables))
    with (folder / target).open("wb") as file:
        file.truncate(size_bytes)
    workshop.run(folder, "mkfs.vfat", "-F", "32", "-s", "1", "-n", BOOT_LABEL, target)
    workshop.run(folder, "sh", "-c", f"MTOOLS_SKIP_CHECK=1 mcopy -s -i {target} boot/* ::/")
    shutil.rmtree(tree)


def environment(variables: Mapping[str, str]) -> bytes:
    """GRUB's environment block (GRUB manual, "Environment block")."""
    text = "# GRUB Environment Block\n" + "".join(f"{name}={value}\n" for name, value in variables.items())
    return text.encode().ljust(ENVIRONMENT_BYTES, b"#")
