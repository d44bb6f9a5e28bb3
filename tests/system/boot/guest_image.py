"""What a guest boots: a kernel, an initial RAM file system and a disk.

The kernel is Debian's for cloud machines. ext4 is built into it and the virtio drivers are not, so the RAM file
system holds those few modules and a shell that loads them and goes over to the disk.
"""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import rootfs

from image.guest.debian import run
from image.guest.kernel import MODULES, fetch_kernel, make_initrd

KERNEL_PACKAGE = "linux-image-cloud-amd64"
DISK_BYTES = 2 << 30  # sparse; the root takes a quarter of it

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


def build_kernel(image: GuestImage, suite: str) -> None:
    """Fetch the kernel of `suite`, and make the RAM file system for it."""
    work = image.folder / "kernel"
    work.mkdir()
    kernel = fetch_kernel(work, KERNEL_PACKAGE, suite, "amd64")
    shutil.copy(kernel.image, image.kernel)
    # Besides what every guest needs, the port of the agent.
    make_initrd(image.initrd, kernel, INIT, (*MODULES, "virtio_console"))
    shutil.rmtree(work)


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
    run("mke2fs", "-q", "-t", "ext4", "-L", "root", "-E", "root_owner=0:0,lazy_itable_init=1", "-d", root,
         image.disk, f"{DISK_BYTES >> 20}M")  # fmt: skip
