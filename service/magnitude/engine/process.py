"""What the engine asks of its own process: die with the parent, give freed memory back, stay quiet."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import signal
import sys
from pathlib import Path

# From <linux/prctl.h>; part of the kernel's stable interface.
_PR_SET_PDEATHSIG = 1

# Asks an engine where its threads stand: it writes their stacks to stderr and goes on. An interpreter that has not
# come as far as to know this is ended by it.
STACKS_SIGNAL = signal.SIGUSR2

# Exit statuses, from <sysexits.h>, so that the parent can tell them apart.
EXIT_VERSION_MISMATCH = 78  # EX_CONFIG: trying again cannot help
EXIT_PROTOCOL_BROKEN = 76  # EX_PROTOCOL
EXIT_OUT_OF_MEMORY = 71  # EX_OSERR


# Added to the chance of being chosen when the kernel has to kill for want of memory, in thousandths of all memory
# (proc(5), oom_score_adj): an engine comes before any process that holds up to half of the board more. It can be
# replaced within a second and holds nothing that is lost; the service beside it holds everybody's requests.
OOM_SCORE_ADJ = 500


def _libc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None, use_errno=True)
    except OSError:
        return None


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the parent thread that started it ends.

    Second net only: the end of the socket is noticed as well. Does nothing where `prctl` is missing.
    """
    libc = _libc()
    if libc is not None and hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def go_first_for_memory(proc: Path = Path("/proc")) -> None:
    """Be the one that the kernel kills when memory runs out, whatever protection the service has and left to its
    child. Raising the figure needs no privilege; where it cannot be written nothing is changed."""
    path = proc / "self/oom_score_adj"
    with contextlib.suppress(OSError, ValueError):
        if int(path.read_text()) < OOM_SCORE_ADJ:
            path.write_text(f"{OOM_SCORE_ADJ}\n")


def is_alive(pid: str) -> bool:
    """Whether there is a process of that number."""
    return Path("/proc", pid).exists()


def trim_heap() -> None:
    """Return freed heap pages to the kernel.

    glibc keeps freed pages for itself; `malloc_trim` hands them back. Other C libraries have no such call and
    need none.
    """
    libc = _libc()
    if libc is not None and hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def forget_mapped_pages(folder: Path, smaps: Path = Path("/proc/self/smaps")) -> int:
    """Drop this process's view of files below `folder` that it has mapped; returns the bytes of those mappings.

    ONNX Runtime maps the weight file and packs most of it into memory of its own: what was read only for that stays
    counted as ours. The pages stay in the page cache, so those that are needed again (the embedding's rows) come
    back by a minor fault. The mapping is private, so one with pages of its own, which could hold what the file does
    not, is left alone.
    """
    libc = _libc()
    if libc is None or not hasattr(libc, "madvise"):
        return 0
    dropped_bytes = 0
    for start, end in untouched_mappings(smaps.read_text(), f"{folder.resolve()}/"):
        if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED) == 0:
            dropped_bytes += end - start
    return dropped_bytes


def untouched_mappings(smaps: str, prefix: str) -> list[tuple[int, int]]:
    """Start and end of the mappings in the text of an smaps file whose files begin with `prefix` and that have no
    page of their own."""
    found: list[tuple[int, int]] = []
    current: tuple[int, int] | None = None
    for line in smaps.splitlines():
        head, _, rest = line.partition(" ")
        if "-" in head:
            borders = head.split("-")
            # The name is the sixth field and may hold spaces: permissions, offset, device, inode, name.
            name = rest.split(maxsplit=4)[-1]
            current = (int(borders[0], 16), int(borders[1], 16)) if name.startswith(prefix) else None
        elif head == "Anonymous:" and current is not None and rest.split()[0] == "0":
            found.append(current)
    return found


def give_back_memory() -> None:
    """Collect garbage and trim the heap."""
    gc.collect()
    trim_heap()


def close_stdin() -> None:
    """Point descriptor 0 at /dev/null, so that no later descriptor gets the number 0."""
    null_fd = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_fd, 0)
    if null_fd != 0:
        os.close(null_fd)


def leave_now(status: int) -> None:
    """End the process from any thread without waiting for the run under way."""
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(status)
