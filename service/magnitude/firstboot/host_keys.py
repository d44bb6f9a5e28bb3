"""The device's own key for ssh, made at its first boot and kept with its state."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from pathlib import Path

from magnitude.errors import MagnitudeError
from magnitude.firstboot.boot_partition import Run
from magnitude.persist import set_aside, sync_folder, write_atomic

# One kind: every ssh client since 2014 knows it, and making an RSA key takes a board seconds.
KEY_NAME = "ssh_host_ed25519_key"

_PRIVATE = re.compile(
    rb"-----BEGIN OPENSSH PRIVATE KEY-----\n(?:[A-Za-z0-9+/=]+\n)+-----END OPENSSH PRIVATE KEY-----\n?"
)


class HostKeyFailed(MagnitudeError):
    """No host key could be made; nobody can log in until one is."""

    code = "host_key_failed"


def make_host_key(folder: Path, run: Run) -> bool:
    """See to it that `folder` holds a whole host key. True when it was made now. Raises `HostKeyFailed`.

    A key that a power cut has torn is set aside and made anew: sshd would not start with it.
    """
    key = folder / KEY_NAME
    if _is_whole(key):
        key.chmod(0o600)  # sshd refuses a key that others may read
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if key.exists():
            set_aside(key)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as work:
            made = Path(work) / KEY_NAME
            failure = run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(made)))
            if failure is not None or not _is_whole(made):
                raise HostKeyFailed(f"ssh-keygen made no key: {failure or 'its file is not whole'}")
            public = made.with_name(f"{KEY_NAME}.pub").read_bytes()
            # The private one last: once it is there, both are.
            write_atomic(key.with_name(f"{KEY_NAME}.pub"), public)
            write_atomic(key, made.read_bytes(), 0o600)
        sync_folder(folder)
    except OSError as error:
        raise HostKeyFailed(f"{error.filename or folder} cannot be written: {error.strerror}") from error
    finally:
        _remove_leftovers(folder)
    return True


def _is_whole(path: Path) -> bool:
    try:
        return _PRIVATE.fullmatch(path.read_bytes()) is not None
    except OSError:
        return False


def _remove_leftovers(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for left in folder.glob(".new-*"):
            shutil.rmtree(left, ignore_errors=True)
