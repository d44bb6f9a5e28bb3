"""A kernel of Debian and a small RAM file system that leads from it to the root.

The kernel's package is unpacked, not installed: what an installation would do in the target (an initrd of its own, a
boot loader) takes long, longer still in emulation, and is not needed.
"""

from __future__ import annotations

import lzma
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from image.guest.debian import fetch_packages, run

# By the names that modprobe knows: the bus, the disk, a source of randomness.
MODULES = ("virtio_pci", "virtio_blk", "virtio-rng")

# For apt: the kernel behind Debian's name of the newest one, a shell for the RAM file system, further packages.
FETCH = """\
kernel=$(apt-cache depends {kernel} | sed -n 's/.*Depends: \\(linux-image-[0-9].*\\)/\\1/p' | head -n 1)
apt-get -q download "$kernel" busybox-static {further}
"""


class UnpackedKernel:
    """What the packages hold, below `tree`, with the modules' dependencies worked out; `release` is as uname says."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        (self.image,) = (tree / "boot").glob("vmlinuz-*")
        self.release = self.image.name.removeprefix("vmlinuz-")

    @property
    def modules(self) -> Path:
        """The folder of modules and of what depmod says of them."""
        return self.tree / "usr/lib/modules" / self.release

    def modules_in_order(self, names: Sequence[str]) -> list[Path]:
        """The files of these modules, each after those it needs; what is built in has none."""
        found: dict[Path, None] = {}
        for name in names:
            told = run("modprobe", "-d", self.tree, "-S", self.release, "--show-depends", name)
            for line in told.splitlines():
                verb, _, rest = line.partition(" ")
                if verb == "insmod":
                    found[Path(rest.split()[0])] = None
        return list(found)


def fetch_kernel(
    folder: Path, package: str, suite: str, architecture: str, further: Sequence[str] = ()
) -> UnpackedKernel:
    """Fetch the kernel that `package` stands for, and `further` packages, and unpack all of them into `folder`."""
    fetch_packages(folder, suite, architecture, FETCH.format(kernel=package, further=" ".join(further)))
    tree = folder / "unpacked"
    for archive in folder.glob("*.deb"):
        run("dpkg-deb", "-x", archive, tree)
        archive.unlink()
    for merged in ("bin", "lib"):  # newer packages count on these links of an installed system
        if not (tree / merged).exists():
            (tree / merged).symlink_to(f"usr/{merged}")
    kernel = UnpackedKernel(tree)
    run("depmod", "-b", tree, kernel.release)
    return kernel


def make_initrd(target: Path, kernel: UnpackedKernel, init: str, modules: Sequence[str] = MODULES) -> None:
    """Write a RAM file system of busybox, the script `init` and `modules`, which it finds in `/modules` in order."""
    tree = target.with_name(target.name + ".tree")
    for name in ("bin", "dev", "modules", "proc", "root", "sys"):
        (tree / name).mkdir(parents=True)
    shutil.copy(kernel.tree / "bin" / "busybox", tree / "bin" / "busybox")
    (tree / "init").write_text(init)
    (tree / "init").chmod(0o755)
    for number, module in enumerate(kernel.modules_in_order(modules)):
        data = module.read_bytes()
        if module.suffix == ".xz":
            data = lzma.decompress(data)
        (tree / "modules" / f"{number:02}-{module.name.removesuffix('.xz')}").write_bytes(data)
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    packed = subprocess.run(
        ["cpio", "--create", "--format=newc", "--quiet", "--owner=+0:+0"],
        cwd=tree,
        input=names.encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    target.write_bytes(packed.stdout)
    shutil.rmtree(tree)
