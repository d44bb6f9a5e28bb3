"""The control groups of the service and its engine, where systemd has delegated ours to us.

cgroup v2 lets a group either hold processes or hand out controllers to groups below it, so before the engine can have
a memory limit of its own the service has to step down into a leaf:

    magnitude.service/            the unit's group, whose limit (MemoryMax=) systemd sets
    ├── service/                  this process; from systemd 254 on it is started here (DelegateSubgroup=)
    ├── engine/                   every engine, with a limit below the unit's
    └── .control/                 systemd's, for ExecReload= and the like

Where nothing is delegated (a terminal, a container, cgroup v1) there is nothing to do, and one line says so.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from magnitude.board.cgroup import chains
from magnitude.board.memory import effective_memory
from magnitude.board.memory_events import group_oom_kills
from magnitude.board.oom import oom_kills
from magnitude.board.roots import HostRoots, read_text

log = logging.getLogger("magnitude.supervise")

SERVICE_LEAF = "service"  # the unit's DelegateSubgroup= names it too
ENGINE_GROUP = "engine"
# What the unit asks for with Delegate=.
CONTROLLERS = ("memory", "pids", "cpu")

# What the unit's limit leaves to the service itself: it holds 100 MB with the embedded models, and `config check`
# takes 60 MB beside it while the unit is reloaded.
SERVICE_RESERVE_BYTES = 192 << 20
# On a board with 512 MB that would leave the engine less than the embedded model needs (290 MB), so there the service
# has to do with a quarter.
SERVICE_RESERVE_SHARE = 4

# systemd marks the groups that it has delegated with this attribute and the value 1.
_DELEGATE_ATTRIBUTE = "user.delegate"


class EngineCgroup:
    """The group that engines are put into; without one (`folder` None) they stay where they are."""

    def __init__(self, folder: Path | None = None, *, roots: HostRoots | None = None) -> None:
        self.folder = folder
        self._roots = roots or HostRoots()

    def add(self, pid: int) -> bool:
        """Move the process `pid` here, with the limit that the unit's limits of this moment leave.

        To be called right after the process was started: memory stays with the group that it was taken in. False
        when the process stays where it is; it then runs under the unit's limit alone.
        """
        if self.folder is None:
            return False
        self._set_limit(self.folder)
        error = _write(self.folder / "cgroup.procs", str(pid))
        if error is not None:
            log.warning("engine stays in the service's group", extra={"fields": {"pid": pid, "error": error}})
        return error is None

    def oom_kills(self) -> int | None:
        """Processes killed for want of memory: of this group since it was made; where there is no group, or it does
        not count, of the whole board since boot. None where nobody counts."""
        kills = group_oom_kills(self.folder) if self.folder is not None else None
        return oom_kills(self._roots) if kills is None else kills

    def _set_limit(self, folder: Path) -> None:
        """An engine that grows meets its own limit before the unit's, so that the kernel ends it and nobody else.

        memory.oom.group stays 0: a warm spare may live here too, and must survive the engine that it replaces.
        """
        limit_bytes = effective_memory(self._roots).limit_bytes
        text = "max" if limit_bytes is None else str(engine_limit_bytes(limit_bytes))
        file = folder / "memory.max"
        if file.exists() and (error := _write(file, text)) is not None:
            log.warning(
                "engine has no memory limit of its own", extra={"fields": {"file": str(file), "error": error}}
            )


def engine_limit_bytes(limit_bytes: int) -> int:
    """The engine's part of the unit's effective limit."""
    return limit_bytes - min(SERVICE_RESERVE_BYTES, limit_bytes // SERVICE_RESERVE_SHARE)


def is_delegated(folder: Path) -> bool:
    """Whether systemd has handed the control group `folder` over to us."""
    try:
        return os.getxattr(folder, _DELEGATE_ATTRIBUTE) == b"1"
    except OSError:
        return False


def enter_leaf(roots: HostRoots | None = None, *, delegated: Callable[[Path], bool] = is_delegated) -> EngineCgroup:
    """Move this process into its leaf and make the engine's group. To be called before anything is started.

    Never raises: without delegation, or where a file refuses, engines run in the service's own group.
    """
    roots = roots or HostRoots()
    unit = _unit_group(roots, delegated)
    if unit is None:
        log.info("no control group is delegated, the engine shares the service's")
        return EngineCgroup(roots=roots)
    error = _step_down(unit) or _make(unit / ENGINE_GROUP)
    if error is not None:
        log.warning("control group cannot be divided", extra={"fields": {"group": str(unit), "error": error}})
        return EngineCgroup(roots=roots)
    offered = (read_text(unit / "cgroup.controllers") or "").split()
    # One by one: a controller that refuses must not cost the others.
    refused = {name: _write(unit / "cgroup.subtree_control", f"+{name}") for name in CONTROLLERS if name in offered}
    active = [name for name, error in refused.items() if error is None]
    log.info("control group divided", extra={"fields": {"group": str(unit), "controllers": ",".join(active) or "-"}})
    return EngineCgroup(unit / ENGINE_GROUP, roots=roots)


def _unit_group(roots: HostRoots, delegated: Callable[[Path], bool]) -> Path | None:
    """The delegated group of our unit: our own, or the one above when we were started in the leaf."""
    for chain in chains(roots, "memory"):
        if chain.version != 2:
            continue
        own = chain.folders[0]
        if delegated(own):
            return own
        if own.name == SERVICE_LEAF and delegated(own.parent):
            return own.parent
    return None


def _step_down(unit: Path) -> str | None:
    """Every process of the unit's group goes into the leaf; usually that is this one alone."""
    leaf = unit / SERVICE_LEAF
    error = _make(leaf)
    if error is not None:
        return error
    for pid in (read_text(unit / "cgroup.procs") or "").split():
        error = _write(leaf / "cgroup.procs", pid)
        # One that has ended meanwhile needs no group any more.
        if error is not None and pid in (read_text(unit / "cgroup.procs") or "").split():
            return error
    return None


def _make(folder: Path) -> str | None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _write(file: Path, text: str) -> str | None:
    """Write to a kernel file, in one piece and without making it; None when it worked, otherwise why not."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        return error.strerror or str(error)
    return None
