"""The tools that make an image, from the same release of Debian as the image itself.

They run in a small root of their own, so that this machine needs none of them, and so that what they write is what
the image's kernel, boot loader and RAUC read: an older mke2fs or RAUC than theirs would do, a newer one may not.
"""

from __future__ import annotations

from pathlib import Path

from image.guest.debian import make_root, run

PACKAGES = (
    "dosfstools",
    "e2fsprogs",
    "fdisk",
    "grub-common",
    "mtools",
    "openssl",
    "python3",
    "rauc",
    "squashfs-tools",
)
# Where the folder of a job is inside.
HERE = "/mnt"
# The folder, the root, and the command.
ENTER = f"""\
mount --bind "$1" "$2{HERE}" && mount -t proc proc "$2/proc" || exit 1
root=$2
shift 2
exec chroot "$root" "$@"
"""


class Workshop:
    """A root file system at `root` that commands are run in."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, folder: Path, *command: str) -> str:
        """Run a command with `folder` as its working folder; what it prints. Raises `BuildFailed`.

        The folder is mounted in a mount namespace of its own, which ends with the command.
        """
        return run(
            "unshare", "--mount", "--", "sh", "-c",
            ENTER, "sh", folder, self.root,
            "/usr/bin/env", "-i",
            f"--chdir={HERE}", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", *command,
        )  # fmt: skip


def make_workshop(root: Path, suite: str) -> None:
    """Install the tools into `root`. Raises `BuildFailed`."""
    make_root(root, suite, PACKAGES)
