from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernel_trees import write_tree
from magnitude.board.process import ProcessUse, read_process


def test_reading_and_memory_are_told(tmp_path: Path) -> None:
    roots = write_tree(
        tmp_path,
        {
            "proc/42/io": "rchar: 999\nwchar: 1\nread_bytes: 4096000\nwrite_bytes: 5\n",
            "proc/42/status": "Name:\tpython 3: x\nVmPeak:\t  900 kB\nVmRSS:\t  217 kB\nRssAnon:\t 100 kB\n",
        },
    )
    assert read_process(42, roots) == ProcessUse(read_bytes=4_096_000, rss_bytes=217 * 1024)


@pytest.mark.parametrize("text", ["", "read_bytes", "read_bytes: x", "read_bytes: -4", "VmRSS:"])
def test_what_the_kernel_does_not_tell_counts_nothing(tmp_path: Path, text: str) -> None:
    roots = write_tree(tmp_path, {"proc/42/io": text, "proc/42/status": text})
    assert read_process(42, roots) == ProcessUse(0, 0)
    assert read_process(43, roots) == ProcessUse(0, 0)


def test_this_very_process_has_memory() -> None:
    assert read_process(os.getpid()).rss_bytes > 1_000_000
