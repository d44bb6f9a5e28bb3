"""Which control groups this process is in, from its own up to the root of the mount.

A limit of any ancestor holds for all below it, so readers of limits walk `ancestors` and take the tightest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from magnitude.board.roots import HostRoots, read_text


class CgroupChain(msgspec.Struct, frozen=True, kw_only=True):
    """`folders` of one controller, the process's own group first. `version` 2 is the unified hierarchy."""

    version: int
    folders: tuple[Path, ...]


def chains(roots: HostRoots, controller: str, pid: int | None = None) -> list[CgroupChain]:
    """The group chains of this process, or of process `pid`, that may hold limits of `controller` ("memory", "cpu").

    On a hybrid system both versions are mounted and either may carry the controller, so both are returned; files
    that are not there say which one does.
    """
    found: list[CgroupChain] = []
    for line in (read_text(roots.proc / str(pid or "self") / "cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if hierarchy == "0" and not controllers:
            mounts = [roots.cgroup, roots.cgroup / "unified"]
            version = 2
        elif controller in controllers.split(","):
            mounts = [roots.cgroup / controllers, roots.cgroup / controller]
            version = 1
        else:
            continue
        mount = next((m for m in mounts if _is_mount(m, version)), None)
        if mount is not None:
            found.append(CgroupChain(version=version, folders=_ancestors(mount, group)))
    return found


def unit_folder(folders: Sequence[Path]) -> Path:
    """Of a chain's folders the one of the systemd unit: that group holds all of the service, while the process itself
    may be in one below it. Without a unit the process's own."""
    return next((folder for folder in folders if folder.suffix in (".service", ".scope")), folders[0])


def _is_mount(folder: Path, version: int) -> bool:
    if version == 1:
        return folder.is_dir()
    # `unified` is only looked at where the root is a tmpfs with one folder a controller (hybrid mode).
    return folder.is_dir() and not (folder / "unified").is_dir()


def _ancestors(mount: Path, group: str) -> tuple[Path, ...]:
    """Folders from `group` up to `mount`. In a container the group's name can be the host's, which does not exist
    below the mount: then the mount itself is the process's group."""
    parts = [part for part in group.split("/") if part not in ("", ".")]
    if ".." in parts or not mount.joinpath(*parts).is_dir():
        parts = []
    return tuple(mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))
