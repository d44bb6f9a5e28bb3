"""What a guest boots: a kernel, an initial RAM file system and a disk.

The kernel is Debian's for cloud machines. Its package is unpacked, not installed: what an installation would do in
the target (an initrd of its own, a boot loader) takes long and is not needed. ext4 is built into that kernel and the
virtio drivers are not, so the RAM file system holds those few modules and a shell that loads them and goes over to
the disk.
"""

from __future__ import annotations

import lzma
import shutil
import subprocess
import textwrap
from collections.abc import Sequence
from pathlib import Path

import rootfs

KERNEL_PACKAGE = "linux-image-cloud-amd64"
# The modules by the names that modprobe knows: the bus, the disk, the port of the agent, a source of randomness.
MODULES = ("virtio_pci", "virtio_blk", "virtio_console", "virtio-rng")
DISK_BYTES = 2 << 30  # sparse; the root takes a quarter of it

FETCH_KERNEL = """\
set -eu
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
cd {folder}
kernel=$(apt-cache depends {package} | sed -n 's/.*Depends: \\(linux-image-[0-9].*\\)/\\1/p' | head -n 1)
apt-get -q download "$kernel" busybox-static
"""

INIT = """\
#!/bin/busybox sh
bb=/bin/busybox
$bb mount -t devtmpfs devtmpfs /dev
$bb mount -t proc proc /proc
for module in /modules/*.ko; do $bb insmod "$module"; done
until $bb mount -t ext4 -o noatime /dev/vda /root 2>/dev/null; do $bb sleep 0.1; done
$bb mount -o move /dev /root/dev
$bb umount /proc
exec $bb switch_root /root /sbin/init
"""


class GuestImage:
    """The files of a guest in `folder`: `kernel`, `initrd` and `disk` (raw ext4)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kernel = folder / "vmlinuz"
        self.initrd = folder / "initrd.img"
        self.disk = folder / "root.ext4"


def _run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def build_kernel(image: GuestImage, suite: str, archives: Sequence[str]) -> None:
    """Fetch the kernel of `suite` from `archives` (lines for apt), and make the RAM file system for it."""
    work = image.folder / "kernel"
    work.mkdir()
    hook = work / "fetch.sh"
    hook.write_text(FETCH_KERNEL.format(folder=work, package=KERNEL_PACKAGE))
    # A root of which nothing is made: it only lends its package lists.
    _run("mmdebstrap", "--mode=root", "--variant=custom", '--aptopt=Acquire::Languages "none"',
         f"--customize-hook=sh {hook}", suite, "/dev/null", *archives)  # fmt: skip
    for package in work.glob("*.deb"):
        _run("dpkg-deb", "-x", package, work / "unpacked")
    unpacked = work / "unpacked"
    for merged in ("bin", "lib"):  # newer packages count on these links of an installed system
        if not (unpacked / merged).exists():
            (unpacked / merged).symlink_to(f"usr/{merged}")
    (kernel,) = (unpacked / "boot").glob("vmlinuz-*")
    shutil.copy(kernel, image.kernel)
    _make_initrd(image.initrd, work / "initrd", unpacked, release=kernel.name.removeprefix("vmlinuz-"))
    shutil.rmtree(work)


def _make_initrd(target: Path, tree: Path, unpacked: Path, *, release: str) -> None:
    for folder in ("bin", "dev", "modules", "proc", "root"):
        (tree / folder).mkdir(parents=True)
    shutil.copy(unpacked / "bin" / "busybox", tree / "bin" / "busybox")
    init = tree / "init"
    init.write_text(INIT)
    init.chmod(0o755)
    _run("depmod", "-b", unpacked, release)
    for number, module in enumerate(_modules_in_order(unpacked, release)):
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


def _modules_in_order(unpacked: Path, release: str) -> list[Path]:
    """Each module after those it needs."""
    found: dict[Path, None] = {}
    for name in MODULES:
        told = _run("modprobe", "-d", unpacked, "-S", release, "--show-depends", name)
        for line in told.splitlines():
            verb, _, rest = line.partition(" ")
            if verb == "insmod":
                found[Path(rest.split()[0])] = None
    return list(found)


AGENT_UNIT = textwrap.dedent("""\
    [Unit]
    Description=Runs what the tests ask for
    [Service]
    ExecStart=/usr/bin/python3 /opt/test/guest_agent.py
    # It must answer also when the rest of the guest is out of memory.
    OOMScoreAdjust=-1000
    Restart=always
    [Install]
    WantedBy=multi-user.target
    """)
# A board without a battery for its clock: it is 1970 when it boots (a day later, because the kernel refuses a time
# before it was started). systemd itself would begin at the date of its own build.
CLOCK_UNIT = textwrap.dedent("""\
    [Unit]
    Description=Forget the time
    DefaultDependencies=no
    Before=sysinit.target
    [Service]
    Type=oneshot
    ExecStart=/usr/bin/date --set=@86400
    [Install]
    WantedBy=sysinit.target
    """)
# Starts and stops may take ten times as long: so much slower is an emulated processor. The watchdog stays as it is.
PATIENT_UNIT = textwrap.dedent("""\
    [Service]
    TimeoutStartSec=1200s
    TimeoutStopSec=300s
    """)
# What a machine that lives for minutes does not need, and would spend emulated seconds on.
MASKED = (*rootfs.MASKED, "getty.target", "ldconfig.service", "systemd-hwdb-update.service")


def add_agent(root: Path) -> None:
    """Put the agent, and what else makes a guest of it, into the tree of a root file system."""
    here = Path(__file__).resolve().parent
    (root / "opt/test").mkdir(parents=True, exist_ok=True)
    shutil.copy(here / "guest_agent.py", root / "opt/test")
    units = root / "etc/systemd/system"
    for name, target, text in (
        ("guest-agent.service", "multi-user.target", AGENT_UNIT),
        ("guest-clock.service", "sysinit.target", CLOCK_UNIT),
    ):
        (units / name).write_text(text)
        wanted = units / f"{target}.wants" / name
        wanted.parent.mkdir(exist_ok=True)
        wanted.symlink_to(f"../{name}")
    drop_in = units / "magnitude.service.d" / "99-patient.conf"
    drop_in.parent.mkdir(exist_ok=True)
    drop_in.write_text(PATIENT_UNIT)
    for unit in MASKED:
        link = units / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    (root / "etc/fstab").write_text("/dev/vda / ext4 rw,noatime 0 1\n")
    (root / "etc/hostname").write_text("guest\n")


def build_disk(image: GuestImage, root: Path) -> None:
    """An ext4 disk with the tree `root` in it."""
    _run("mke2fs", "-q", "-t", "ext4", "-L", "root", "-E", "root_owner=0:0,lazy_itable_init=1", "-d", root,
         image.disk, f"{DISK_BYTES >> 20}M")  # fmt: skip
