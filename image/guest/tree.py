"""The root file system of the image: Debian with what a device needs, our wheel, its units and the models.

In layers: Debian (minutes, longer in emulation; kept), Python packages (kept too), and on top of them what is ours
(seconds).
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from image.debian.kernels_library import PLACE
from image.debian.left_out import trim_packages
from image.guest import partitions
from image.guest.debian import CHECKOUT, MACHINES, dependencies, in_root, make_root, python_of, run, wheel_options
from image.guest.kernel import fetch_kernel, make_initrd
from image.guest.trimming import trim_debian, trim_modules
from image.guest.workshop import Workshop

SUITE = "trixie"
FILES = Path(__file__).resolve().parent / "files"
# rauc-service brings RAUC's unit and its place on the bus; e2fsprogs and fdisk check and grow the data partition.
PACKAGES = (
    "dbus",
    "e2fsprogs",
    "fdisk",
    "iproute2",
    "kmod",
    "python3",
    "rauc",
    "rauc-service",
    "systemd",
    "systemd-sysv",
    "udev",
)
# Kernels for virtual machines: a quarter of the drivers of the general one.
KERNELS = {"amd64": "linux-image-cloud-amd64", "arm64": "linux-image-cloud-arm64"}
GRUB_PACKAGES = {"amd64": "grub-efi-amd64-bin", "arm64": "grub-efi-arm64-bin"}
# Where Debian's Python looks for packages of the distribution.
SITE = "usr/lib/python3/dist-packages"
MODELS = "usr/share/magnitude/models"
# What makes, at boot, the links through which the image's models are served; one file for all our images.
LINKS = CHECKOUT / "image/embedded-models.tmpfiles.conf"
# Units that would run at some moment of their own, or that are somebody else's task: only our own check of a boot
# says that a slot is good.
MASKED = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    # Looks for what that one left behind, at each boot.
    "e2scrub_reap.service",
    "fstrim.timer",
    "ldconfig.service",
    # No program here is for another kind of machine.
    "proc-sys-fs-binfmt_misc.automount",
    "rauc-mark-good.service",
    "systemd-binfmt.service",
    "systemd-hwdb-update.service",
    "systemd-networkd-wait-online.service",
)
# Mount points that no package makes.
MOUNT_POINTS = (
    "boot/firmware",
    "data",
    "etc/magnitude",
    "usr/share/magnitude/models",
    "var/cache/magnitude",
    "var/lib/NetworkManager",
    "var/lib/magnitude",
    "var/lib/magnitude-device",
    "var/lib/magnitude-last-resort",
    "var/lib/rauc",
    "var/lib/systemd",
    "var/log",
)
LAUNCHER = """\
#!/usr/bin/python3
import sys

from magnitude.cli.main import run

sys.exit(run())
"""


def make_base(root: Path, architecture: str) -> None:
    """Debian. Raises `BuildFailed`."""
    # The names of hardware: udev's installation makes an index of them, which takes minutes in emulation.
    make_root(root, SUITE, PACKAGES, architecture=architecture, left_out=["/usr/lib/udev/hwdb.d/*"])


def make_site(site: Path, base: Path, architecture: str) -> None:
    """Our dependencies and the importers', for the Python of `base`. Raises `BuildFailed`."""
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", f"--target={site}",
        *wheel_options(python_of(base), MACHINES[architecture]), *dependencies("import"))  # fmt: skip


def fetch_boot_parts(folder: Path, architecture: str) -> None:
    """The kernel, its modules, a RAM file system and the modules of GRUB, below `folder`. Raises `BuildFailed`."""
    work = folder / "work"
    work.mkdir()
    kernel = fetch_kernel(work, KERNELS[architecture], SUITE, architecture, [GRUB_PACKAGES[architecture]])
    shutil.copy(kernel.image, folder / "vmlinuz")
    make_initrd(folder / "initrd.img", kernel, (FILES / "init").read_text())
    trim_modules(kernel.modules)
    run("depmod", "-b", kernel.tree, kernel.release)
    shutil.move(kernel.tree / "usr/lib/modules", folder / "modules")
    shutil.move(kernel.tree / "usr/lib/grub", folder / "grub")
    shutil.rmtree(work)


def make_tree(
    root: Path,
    base: Path,
    site: Path,
    boot_parts: Path,
    wheel: Path,
    kernels: Path,
    workshop: Workshop,
    architecture: str,
    *,
    keyring: Path,
    models: Sequence[Path] = (),
    overlay: Path | None = None,
) -> None:
    """What is ours on top of `base` and `site`, into `root`, with the library `kernels`. Files of `overlay` are put
    over all others."""
    run("cp", "--archive", "--reflink=auto", f"{base}/.", root)
    run("cp", "--recursive", "--reflink=auto", f"{site}/.", root / SITE)
    trim_debian(root)
    trim_packages(root / SITE, image=True)
    for folder in MOUNT_POINTS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "boot").mkdir(exist_ok=True)
    for name in ("vmlinuz", "initrd.img"):
        shutil.copy(boot_parts / name, root / "boot" / name)
    shutil.copytree(boot_parts / "modules", root / "usr/lib/modules", symlinks=True, dirs_exist_ok=True)
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps", "--no-index",
        f"--target={root / SITE}", *map(str, wheel.glob("*.whl")))  # fmt: skip
    shutil.copyfile(kernels, root / SITE / PLACE)
    shutil.rmtree(root / SITE / "bin", ignore_errors=True)
    _write(root / "usr/bin/magnitude", LAUNCHER, 0o755)
    _configure(root, architecture, keyring)
    in_root(root, "magnitude", "install-units", "--prefix", "/usr", "--image")
    _write(root / "usr/lib/tmpfiles.d/magnitude-models.conf", links_to([model.name for model in models]))
    for model in models:
        run("cp", "--recursive", "--reflink=auto", model.resolve(), root / MODELS / model.name)
    run("chown", "-R", "0:0", root / MODELS)
    run("chmod", "-R", "u=rwX,go=rX", root / MODELS)
    if overlay is not None:
        run("cp", "--recursive", "--no-dereference", "--preserve=mode,links", f"{overlay}/.", root)
    # A read-only root keeps no compiled modules, so they come along; without them each start compiles anew.
    for cache in root.glob(f"{SITE}/**/__pycache__"):
        shutil.rmtree(cache)
    workshop.run(
        root, "python3", "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash", "-d", f"/{SITE}", SITE
    )


def _configure(root: Path, architecture: str, keyring: Path) -> None:
    uuids = {
        name: partitions.uuid_of(number) for name, number in (("BOOT", 1), ("ROOT_A", 2), ("ROOT_B", 3), ("DATA", 4))
    }
    filled_in = uuids | {"ARCHITECTURE": architecture}
    for name, target, mode in (
        ("fstab", "etc/fstab", 0o644),
        ("system.conf", "etc/rauc/system.conf", 0o644),
        ("grub-editenv", "usr/bin/grub-editenv", 0o755),
        ("journald.conf", "etc/systemd/journald.conf.d/60-volatile.conf", 0o644),
        ("network", "etc/systemd/network/80-dhcp.network", 0o644),
        ("guest-socket.conf", "etc/systemd/system/magnitude.socket.d/50-guest.conf", 0o644),
        ("guest-service.conf", "etc/systemd/system/magnitude.service.d/50-guest.conf", 0o644),
        ("guest-boot-check.conf", "etc/systemd/system/magnitude-boot-check.service.d/50-guest.conf", 0o644),
        ("guest-first-boot.conf", "etc/systemd/system/magnitude-first-boot.service.d/50-guest.conf", 0o644),
        ("guest-first-boot.conf", "etc/systemd/system/magnitude-self-test.service.d/50-guest.conf", 0o644),
    ):
        _write(root / target, fill_in((FILES / name).read_text(), filled_in), mode)
    shutil.copy(keyring, root / "etc/rauc/keyring.pem")
    _write(root / "etc/hostname", "magnitude\n")
    _write(root / "etc/hosts", "127.0.0.1 localhost magnitude\n::1 localhost\n")
    # Empty: the machine's own is put over it at boot.
    _write(root / "etc/machine-id", "")
    dbus = root / "var/lib/dbus/machine-id"
    dbus.parent.mkdir(parents=True, exist_ok=True)
    dbus.unlink(missing_ok=True)
    dbus.symlink_to("/etc/machine-id")
    for unit in MASKED:
        link = root / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    in_root(root, "systemctl", "enable", "systemd-networkd.service")


def links_to(names: Sequence[str]) -> str:
    """The lines for tmpfiles that link to the image's models `names`; those of `LINKS` for the usual ones."""
    lines = LINKS.read_text().splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if line.startswith("L "))
    usual = lines[first].split()[1].rpartition("/")[2]
    return "".join(lines[: first - 1]) + "".join(
        line.replace(usual, name) for name in names for line in lines[first - 1 : first + 1]
    )


def fill_in(text: str, values: dict[str, str]) -> str:
    """`text` with each @NAME@ replaced. Raises `KeyError` for a name without a value."""
    return re.sub(r"@([A-Z_]+)@", lambda found: values[found[1]], text)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
