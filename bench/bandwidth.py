"""How fast this machine reads memory: what a decode step that does nothing but read its weights would reach."""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np

# Beyond the last cache of every machine in question, for each thread.
BUFFER_BYTES = 256 * 1024 * 1024


class MemoryReader:
    """Reads memory on `threads` threads together.

    Each looks for a byte that is not there with memchr(3): the C library's fastest reading loop, and ctypes gives up
    the interpreter's lock meanwhile.
    """

    def __init__(self, threads: int) -> None:
        self._buffers = [np.ones(BUFFER_BYTES, np.uint8) for _ in range(threads)]
        self._memchr = ctypes.CDLL(None).memchr
        self._memchr.restype = ctypes.c_void_p
        self._memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

    def rate(self) -> float:
        """Bytes a second, now."""
        readers = [
            threading.Thread(target=self._memchr, args=(buffer.ctypes.data, 2, buffer.nbytes))
            for buffer in self._buffers
        ]
        begin = time.perf_counter()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        return sum(buffer.nbytes for buffer in self._buffers) / (time.perf_counter() - begin)
