"""A share of the processor that others take away and give back: a quota of a control group where one may be made,
else the affinity of every thread."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from magnitude.board.cgroup import chains
from magnitude.board.roots import HostRoots

# The kernel's own default for a quota's period.
PERIOD_US = 100_000
# A group can go only when its processes have gone, which the kernel tells a moment later.
GONE_TRIES, GONE_PAUSE_S = 50, 0.1


class CpuShare:
    """For processes that are started by `command`, and their children. `how` says in words what limits them."""

    def __init__(self, roots: HostRoots | None = None) -> None:
        self.cpus = sorted(os.sched_getaffinity(0))
        self._group, self._version = _make_group(roots or HostRoots())
        self.how = {
            1: "quota of a control group (version 1)",
            2: "quota of a control group (version 2)",
            0: "affinity of all threads: no control group may be made here",
        }[self._version]

    def command(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """The same, in the group from its beginning."""
        if self._group is None:
            return command
        join = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
        return ("/bin/sh", "-c", join, str(self._group), *command)

    def set(self, share: float, pid: int) -> None:
        """Let the process and its children have so much of all CPUs that this one may use; 1 is all."""
        cpus = max(1, round(share * len(self.cpus)))
        if self._group is None:
            _confine(pid, self.cpus[:cpus])
            return
        quota_us = round(share * len(self.cpus) * PERIOD_US)
        if self._version == 1:
            (self._group / "cpu.cfs_quota_us").write_text("-1" if share >= 1 else str(quota_us))
        else:
            quota = "max" if share >= 1 else str(quota_us)
            (self._group / "cpu.max").write_text(f"{quota} {PERIOD_US}")

    def close(self) -> None:
        """Remove the group."""
        for _ in range(GONE_TRIES if self._group is not None else 0):
            with contextlib.suppress(OSError):
                assert self._group is not None
                self._group.rmdir()
                return
            time.sleep(GONE_PAUSE_S)


@contextlib.contextmanager
def cpu_share(roots: HostRoots | None = None) -> Iterator[CpuShare]:
    """One that is removed at the end."""
    share = CpuShare(roots)
    try:
        yield share
    finally:
        share.close()


def _make_group(roots: HostRoots) -> tuple[Path | None, int]:
    for chain in chains(roots, "cpu"):
        group = chain.folders[0] / f"magnitude-bench-{os.getpid()}"
        knob = group / ("cpu.cfs_quota_us" if chain.version == 1 else "cpu.max")
        with contextlib.suppress(OSError):
            group.mkdir()
            if os.access(knob, os.W_OK) and os.access(group / "cgroup.procs", os.W_OK):
                return group, chain.version
        with contextlib.suppress(OSError):
            group.rmdir()
    return None, 0


def _confine(pid: int, cpus: list[int]) -> None:
    """All threads of the process and its children; threads that they begin later inherit it."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error, OSError):
                for thread in each.threads():
                    with contextlib.suppress(OSError):
                        os.sched_setaffinity(thread.id, cpus)
