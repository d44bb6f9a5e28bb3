"""What the image leaves out of Debian and of its kernel, and why. (Of Python packages: image/debian/left_out.py.)"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

# Whole packages: the root is read-only, and a system that is replaced as a whole installs nothing. They count as not
# installed in dpkg's list, which stays: tools that look for known weaknesses read it.
PACKAGES = (
    "apt",
    "debconf",
    "debian-archive-keyring",
    "dpkg",
    "init-system-helpers",
    "libapt-pkg7.0",
    "perl-base",
    "sqv",
)
# As patterns of `Path.glob`.
FILES = (
    # Left behind by installing packages.
    "var/cache/apt",
    "var/cache/debconf",
    "var/cache/ldconfig",
    "var/lib/apt",
    "var/lib/dpkg/[!s]*",
    "var/lib/dpkg/status-old",
    "var/log",
    # For a person at a prompt, for debuggers, for makers of packages.
    "usr/share/bash-completion",
    "usr/share/doc-base",
    "usr/share/fish",
    "usr/share/gcc",
    "usr/share/gdb",
    "usr/share/initramfs-tools",
    "usr/share/lintian",
    "usr/share/zsh",
    # The C library's tables of old character sets: everything here is UTF-8.
    "usr/lib/*-linux-gnu/gconv",
    # Names of USB and PCI devices and the keys of keyboards. udev works without, and nothing here asks for them.
    "usr/lib/udev/hwdb.bin",
    "usr/lib/udev/hwdb.d",
    # Python's own tests, and the help of its prompt.
    "usr/lib/python3.*/test",
    "usr/lib/python3.*/pydoc_data",
)
# Modules of the kernel, as patterns of names or of folders below `kernel`. What they need comes along.
MODULES = (
    # What QEMU and other hosts show to a guest.
    "virtio*",
    "vmw_vsock_virtio_transport",
    "9p",
    "9pnet_virtio",
    "e1000*",
    # Disks, memory cards, and memory that is compressed.
    "ahci",
    "nvme",
    "sd_mod",
    "loop",
    "dm-mod",
    "dm-verity",
    "zram",
    # File systems of the partitions, of updates, and of what is mounted over others.
    "ext4",
    "vfat",
    "nls_*",
    "squashfs",
    "overlay",
    "fuse",
    "autofs4",
    "efivarfs",
    # Ciphers and sums, which the ones above ask for by name at run time.
    "crypto/*",
    "lib/*",
    "arch/*/crypto/*",
    # Networks. (No program here sets up a firewall; the limits on addresses in units are the kernel's own.)
    "af_packet",
    "ipv6",
    # Watchdog, clocks, heat, frequencies, buttons: what a board has, as far as a guest does.
    "drivers/watchdog/*",
    "drivers/rtc/*",
    "drivers/thermal/*",
    "drivers/cpufreq/*",
    "drivers/hwmon/*",
    "drivers/powercap/*",
    "button",
    "evdev",
    "gpio_keys",
    # USB that comes and goes.
    "ehci-pci",
    "xhci-pci",
    "usb-storage",
    "uas",
)


def trim_debian(root: Path) -> None:
    """Take away from a root of Debian what the device never uses."""
    _drop_packages(root, PACKAGES)
    for pattern in FILES:
        for path in list(root.glob(pattern)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _drop_packages(root: Path, names: Iterable[str]) -> None:
    database = root / "var/lib/dpkg"
    status = (database / "status").read_text()
    for name in names:
        (listed,) = [*(database / "info").glob(f"{name}.list"), *(database / "info").glob(f"{name}:*.list")]
        paths = [root / line.lstrip("/") for line in listed.read_text().splitlines() if line.strip("/.")]
        for path in reversed(paths):
            if path.is_dir() and not path.is_symlink():
                # Folders that other packages have, too, are not empty.
                if not any(path.iterdir()):
                    path.rmdir()
            else:
                path.unlink(missing_ok=True)
        status = re.sub(rf"(?ms)^Package: {re.escape(name)}\n.*?(?:\n\n|\Z)", "", status)
    (database / "status").write_text(status)


def trim_modules(folder: Path) -> None:
    """Remove modules that a device in a virtual machine never loads from `folder`, which has `kernel` and the
    `modules.dep` of depmod; that has to run again afterwards."""
    needs = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        name, _, needed = line.partition(":")
        needs[name] = needed.split()
    kept = {path for path in needs if any(_is_named(path, pattern) for pattern in MODULES)}
    kept |= {needed for path in kept for needed in needs[path]}
    for path in needs:
        if path not in kept:
            (folder / path).unlink()
    for below in sorted(folder.glob("kernel/**/"), reverse=True):
        if not any(below.iterdir()):
            below.rmdir()


def _is_named(path: str, pattern: str) -> bool:
    """Whether the module at `path`, such as `kernel/fs/ext4/ext4.ko.xz`, is meant by a pattern of MODULES."""
    if "/" in pattern:
        return fnmatch(path.removeprefix("kernel/"), pattern)
    return fnmatch(module_name(path), pattern.replace("-", "_"))


def module_name(path: str) -> str:
    """A module's name as lsmod says it."""
    return path.rpartition("/")[2].partition(".ko")[0].replace("-", "_")
