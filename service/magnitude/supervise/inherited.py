"""Descriptors that the service manager hands over at the start: listening sockets, and what an earlier run stored.

They follow sd_listen_fds(3): from descriptor 3 on, as many as LISTEN_FDS says, when LISTEN_PID is this process. A
socket comes under the FileDescriptorName= of its unit, a stored descriptor under the name that it was stored with.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import MutableMapping

import msgspec

log = logging.getLogger("magnitude.supervise")

FIRST_FD = 3  # SD_LISTEN_FDS_START of sd_listen_fds(3)
# systemd's default limit of open files (DefaultLimitNOFILE=1024): a larger count is garbage.
_MAX_INHERITED = 1024

# LISTEN_PIDFDID came with systemd 258; it adds nothing for a process that was started just now.
VARIABLES = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "LISTEN_PIDFDID")


class InheritedFd(msgspec.Struct, frozen=True):
    """An open descriptor that is ours now. `name` is `fdN` when the manager gave none."""

    name: str
    fd: int

    @property
    def is_socket(self) -> bool:
        return stat.S_ISSOCK(os.fstat(self.fd).st_mode)


def take_inherited(environ: MutableMapping[str, str], first_fd: int = FIRST_FD) -> list[InheritedFd]:
    """What was handed over, close-on-exec from now on. Takes the variables out of `environ`, so that no child takes
    the descriptors for its own. None, when the variables are not meant for this process or make no sense.
    """
    values = {name: environ.pop(name, "") for name in VARIABLES}
    if values["LISTEN_PID"] != str(os.getpid()):
        return []
    count = values["LISTEN_FDS"]
    if not (count.isascii() and count.isdecimal()) or int(count) > _MAX_INHERITED:
        return []
    names = values["LISTEN_FDNAMES"].split(":")
    found: list[InheritedFd] = []
    for number in range(int(count)):
        fd = first_fd + number
        try:
            os.set_inheritable(fd, False)
        except OSError as error:
            log.warning("inherited descriptor is not open", extra={"fields": {"fd": fd, "error": str(error)}})
            continue
        name = names[number] if number < len(names) and names[number] else f"fd{fd}"
        found.append(InheritedFd(name, fd))
    return found
