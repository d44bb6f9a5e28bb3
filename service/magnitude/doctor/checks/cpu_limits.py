"""May the service limit the CPUs' clocks? Where it may not, it meets heat by pausing, which takes more energy for the
same work than a lower clock does."""

from __future__ import annotations

import grp
import stat
from collections.abc import Collection
from pathlib import Path

from magnitude.board.cap_files import CapFiles
from magnitude.board.snapshot import Snapshot
from magnitude.doctor.board_view import look
from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding

GROUP = "magnitude"  # the units' group, which the privileged helper opens the files to


def check(context: DoctorContext) -> Finding:
    snapshot = look(context).snapshot
    files = CapFiles(context.roots)
    opened = {policy.name for policy in snapshot.clocks if _open_to_group(files.limit_path(policy.name))}
    return judge(snapshot, opened, units=_group_id() is not None)


def judge(snapshot: Snapshot, opened: Collection[str], *, units: bool) -> Finding:
    """`opened`: policies that the service's group may limit; `units`: that group exists."""
    if not snapshot.clocks:
        return Finding(level="ok", title="There are no CPU clocks to limit")
    closed = [policy.name for policy in snapshot.clocks if policy.name not in opened and not policy.writable]
    if not closed:
        who = "the service" if all(policy.name in opened for policy in snapshot.clocks) else "this user"
        return Finding(level="ok", title=f"CPU clocks can be limited by {who}")
    return Finding(
        level="warning",
        title=f"The clock limits of {', '.join(closed)} cannot be written",
        detail="Against heat the service pauses between steps instead, which takes more energy for the same work",
        advice="`sudo systemctl start magnitude-permissions.service`; it says why if it fails"
        if units
        else "Run it as a service: `sudo magnitude install-units` brings the helper that gives this permission",
    )


def _open_to_group(path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_gid == _group_id() and bool(found.st_mode & stat.S_IWGRP)


def _group_id() -> int | None:
    try:
        return grp.getgrnam(GROUP).gr_gid
    except KeyError:
        return None
