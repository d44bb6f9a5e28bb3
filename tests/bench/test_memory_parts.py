"""Resident memory by kind, from smaps text and from this very process."""

import mmap
import os
from pathlib import Path

from bench.memory import open_files, parse_smaps, read_memory

SMAPS = """\
00400000-00500000 r-xp 00000000 08:02 173521      /usr/lib/python3.11/lib with space.so
Size:               1024 kB
Rss:                 100 kB
Pss:                  50 kB
Shared_Clean:         90 kB
Private_Clean:        10 kB
Private_Dirty:         0 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
Rss:                 200 kB
Pss:                 200 kB
Private_Clean:         0 kB
Private_Dirty:       200 kB
7f0000200000-7f0000300000 rw-p 00000000 00:00 0   [heap]
Rss:                  30 kB
Pss:                  30 kB
Private_Dirty:        30 kB
7f0000400000-7f0000500000 r--s 00000000 08:02 99  /models/chat/model.onnx.data
Rss:                   8 kB
Pss:                   4 kB
7f0000600000-7f0000700000 rw-s 00000000 00:01 77  /memfd:magnitude-kv-chat (deleted)
Rss:                4000 kB
Pss:                2000 kB
"""


def test_pages_are_sorted_into_kv_weights_files_and_anonymous_memory() -> None:
    memory = parse_smaps(SMAPS, Path("/models/chat"))
    assert memory.kv_bytes == 4000 * 1024
    assert memory.weights_bytes == 8 * 1024
    assert memory.files_bytes == 100 * 1024
    assert memory.anon_bytes == 230 * 1024
    assert memory.rss_bytes == 4338 * 1024
    assert memory.less_kv_bytes == 338 * 1024
    assert memory.uss_bytes == 240 * 1024
    assert memory.pss_bytes == 2284 * 1024


def test_without_a_model_folder_its_pages_are_files() -> None:
    memory = parse_smaps(SMAPS)
    assert memory.weights_bytes == 0
    assert memory.files_bytes == 108 * 1024


def test_touched_pages_of_a_memfd_count_as_kv() -> None:
    fd = os.memfd_create("magnitude-kv-test")
    try:
        os.ftruncate(fd, 1 << 20)
        with mmap.mmap(fd, 1 << 20) as memory:
            before = read_memory(os.getpid()).kv_bytes
            memory[: 1 << 19] = bytes(1 << 19)
            assert read_memory(os.getpid()).kv_bytes - before == 1 << 19
    finally:
        os.close(fd)


def test_open_files_are_counted() -> None:
    before = open_files(os.getpid())
    fd = os.open(os.devnull, os.O_RDONLY)
    try:
        assert open_files(os.getpid()) == before + 1
    finally:
        os.close(fd)
