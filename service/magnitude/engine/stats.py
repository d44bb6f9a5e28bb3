"""Memory and progress figures of the engine process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from magnitude.engine.protocol import PoolUse


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """`rss_bytes` counts every resident page (weights mapped from files and KV included), `anon_bytes` only
    the process's own, which no page cache can give back."""

    rss_bytes: int
    anon_bytes: int


def parse_status(text: str) -> MemoryUse:
    """Memory use from the text of `/proc/<pid>/status` (proc(5); values are in KiB). Missing lines count 0."""
    kib = {"VmRSS": 0, "RssAnon": 0}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in kib:
            kib[name] = int(rest.split()[0])
    return MemoryUse(rss_bytes=kib["VmRSS"] * 1024, anon_bytes=kib["RssAnon"] * 1024)


def read_memory(proc_root: Path = Path("/proc")) -> MemoryUse:
    """Memory use of this process; zeros where the kernel does not tell."""
    try:
        return parse_status((proc_root / "self" / "status").read_text(encoding="ascii", errors="replace"))
    except OSError:
        return MemoryUse(rss_bytes=0, anon_bytes=0)


def parse_cpu_features(text: str) -> tuple[str, ...]:
    """Flags of the first core in `/proc/cpuinfo`: `flags` on x86, `Features` on Arm. Sorted."""
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return tuple(sorted(rest.split()))
    return ()


def read_cpu_features(proc_root: Path = Path("/proc")) -> tuple[str, ...]:
    try:
        return parse_cpu_features((proc_root / "cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ()


class Progress:
    """Written by the compute thread, read by the heartbeat thread.

    Each attribute is replaced as a whole, so a reader sees an old or a new value, never a mixture.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._run_started_s = 0.0
        self.steps = 0
        self.open_requests = 0
        self.run_pool = PoolUse()
        self.sessions = 0  # further ones of all models, and what they took when they were made
        self.session_bytes = 0
        self.paused = False  # between two runs, because the pace does not allow one yet

    def run_begins(self) -> None:
        self._run_started_s = self._clock()

    def run_ends(self, *, finished: bool) -> None:
        """`finished` false: the run failed or was none, which is not progress."""
        self._run_started_s = 0.0
        if finished:
            self.steps += 1

    def busy_s(self) -> float:
        """Age of the graph run under way; 0 between runs."""
        started_s = self._run_started_s
        return max(0.0, self._clock() - started_s) if started_s else 0.0
