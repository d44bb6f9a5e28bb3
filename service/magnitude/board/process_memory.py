"""Memory of single processes, and what they have read. A number alone names no process: it is given away again once
its owner has ended, so a process is its number together with the time it started."""

from __future__ import annotations

import msgspec

from magnitude.board.roots import HostRoots, read_text


class ProcessMemory(msgspec.Struct, frozen=True, kw_only=True):
    """`anon_bytes` is memory of its own that is resident, `swap_bytes` what of it is swapped out, `shared_bytes`
    shared memory (KV), `file_bytes` pages of mapped files (weights, code). `start_ticks` is the kernel's time of its
    start (clock ticks since boot)."""

    pid: int
    start_ticks: int
    anon_bytes: int
    swap_bytes: int
    shared_bytes: int
    file_bytes: int

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.start_ticks

    @property
    def own_bytes(self) -> int:
        """What comes free when it ends, wherever it lies now."""
        return self.anon_bytes + self.swap_bytes

    @property
    def resident_bytes(self) -> int:
        """All that is in memory, whoever else has it as well."""
        return self.anon_bytes + self.shared_bytes + self.file_bytes


def read_process(roots: HostRoots, pid: int) -> ProcessMemory | None:
    """Memory of process `pid`; None when there is no such process, it has ended (a zombie holds nothing), it may not
    be looked at, or another one got its number while it was read."""
    before = _start_ticks(roots, pid)
    kib: dict[str, int] = {}
    for line in (read_text(roots.proc / str(pid) / "status") or "").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if name == "State" and words[:1] in (["Z"], ["X"]):
            return None
        if words and words[0].isdigit():
            kib[name] = int(words[0])
    # Kernels before 4.5 do not split the resident size; all of it is then taken for the process's own.
    anon = kib.get("RssAnon", kib.get("VmRSS"))
    if before is None or anon is None or _start_ticks(roots, pid) != before:
        return None
    return ProcessMemory(
        pid=pid,
        start_ticks=before,
        anon_bytes=anon * 1024,
        swap_bytes=kib.get("VmSwap", 0) * 1024,
        shared_bytes=kib.get("RssShmem", 0) * 1024,
        file_bytes=kib.get("RssFile", 0) * 1024,
    )


def read_storage_bytes(roots: HostRoots, pid: int) -> int:
    """What process `pid` made storage read since its start (proc(5), `io`); 0 where the kernel does not tell."""
    for line in (read_text(roots.proc / str(pid) / "io") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "read_bytes" and value.strip().isdecimal():
            return int(value)
    return 0


def _start_ticks(roots: HostRoots, pid: int) -> int | None:
    """Field 22 of /proc/PID/stat. The name before it stands in brackets and may hold spaces and brackets."""
    fields = (read_text(roots.proc / str(pid) / "stat") or "").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else None
