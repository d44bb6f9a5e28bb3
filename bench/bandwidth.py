"""How fast this machine reads memory: what a decode step that does nothing but read its weights would reach."""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np

# Beyond the last cache of every machine in question, for each thread.
BUFFER_BYTES = 256 * 1024 * 1024
ROUNDS = 7


def read_bandwidth(threads: int, rounds: int = ROUNDS) -> float:
    """Bytes a second that `threads` threads read together, the best of `rounds`.

    Each looks for a byte that is not there with memchr(3): the C library's fastest reading loop, and ctypes gives up
    the interpreter's lock meanwhile.
    """
    memchr = ctypes.CDLL(None).memchr
    memchr.restype = ctypes.c_void_p
    memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    buffers = [np.ones(BUFFER_BYTES, np.uint8) for _ in range(threads)]
    best = 0.0
    for _ in range(rounds):
        readers = [threading.Thread(target=memchr, args=(buffer.ctypes.data, 2, buffer.nbytes)) for buffer in buffers]
        begin = time.perf_counter()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        best = max(best, threads * BUFFER_BYTES / (time.perf_counter() - begin))
    return best
