"""What the engine asks of its own process: die with the parent, give freed memory back, stay quiet."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys

# From <linux/prctl.h>; part of the kernel's stable interface.
_PR_SET_PDEATHSIG = 1

# Exit statuses, from <sysexits.h>, so that the parent can tell them apart.
EXIT_VERSION_MISMATCH = 78  # EX_CONFIG: trying again cannot help
EXIT_PROTOCOL_BROKEN = 76  # EX_PROTOCOL
EXIT_OUT_OF_MEMORY = 71  # EX_OSERR


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


def trim_heap() -> None:
    """Return freed heap pages to the kernel.

    glibc keeps freed pages for itself; `malloc_trim` hands them back. Other C libraries have no such call and
    need none.
    """
    libc = _libc()
    if libc is not None and hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


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
