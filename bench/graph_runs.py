"""A decoder's graph in this process, run as the engine runs it, and the time of its runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from magnitude.engine.decoder import Decoder
from magnitude.engine.kv import KvMemory
from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.sessions import open_session
from magnitude.models.description import ModelDescription

SLOTS, MAX_LEN = 4, 512


def timed(do: Callable[[], Any]) -> tuple[float, float]:
    """Seconds that `do` takes, and seconds of processor time of all threads, which other processes disturb less."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    do()
    return time.perf_counter() - wall_s, time.process_time() - cpu_s


@contextmanager
def open_decoder(model: ModelDescription, threads: int) -> Iterator[Decoder]:
    """A decoder with KV memory of `SLOTS` slots of `MAX_LEN` positions."""
    with kv_file(model) as (fd, layout):
        kv = KvMemory(fd, layout)
        session = open_session(Path(model.folder) / model.graph_file, threads)
        decoder = Decoder(model, session, kv, max_batch=layout.slots)
        try:
            yield decoder
        finally:
            decoder.close()
            kv.close()


@contextmanager
def kv_file(model: ModelDescription) -> Iterator[tuple[int, KvLayout]]:
    """KV memory for such a decoder, and its layout."""
    assert model.decoder is not None
    layout = KvLayout.of(model.decoder, slots=SLOTS, max_len=MAX_LEN)
    fd = os.memfd_create("bench-kv")
    try:
        os.ftruncate(fd, layout.total_bytes)
        yield fd, layout
    finally:
        os.close(fd)
