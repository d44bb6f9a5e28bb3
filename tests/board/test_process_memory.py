from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_trees import write_tree
from magnitude.board.process_memory import read_process, read_storage_bytes
from magnitude.board.roots import HostRoots

STATUS = (
    "Name:\tpython\nState:\tS (sleeping)\n"
    "VmRSS:\t400 kB\nRssAnon:\t300 kB\nRssFile:\t60 kB\nRssShmem:\t40 kB\nVmSwap:\t20 kB"
)


def stat(started: int, name: str = "python") -> str:
    return f"7 ({name}) S 1 7 7 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 4 0 {started} 0 0 0"


def test_what_is_swapped_out_counts_as_the_processs_own(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, {"proc/7/status": STATUS, "proc/7/stat": stat(1234)})
    process = read_process(roots, 7)
    assert process is not None
    assert process.identity == (7, 1234)
    assert process.own_bytes == 320 * 1024
    assert (process.shared_bytes, process.file_bytes) == (40 * 1024, 60 * 1024)
    assert process.resident_bytes == 400 * 1024


def test_a_name_with_brackets_and_spaces_does_not_move_the_start_time(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, {"proc/7/status": STATUS, "proc/7/stat": stat(99, "a) R 1 (b")})
    process = read_process(roots, 7)
    assert process is not None
    assert process.start_ticks == 99


def test_the_same_number_with_another_start_is_another_process(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, {"proc/7/status": STATUS, "proc/7/stat": stat(1234)})
    before = read_process(roots, 7)
    write_tree(tmp_path, {"proc/7/stat": stat(5678)})
    after = read_process(roots, 7)
    assert before is not None and after is not None
    assert before.identity != after.identity


def test_a_kernel_that_does_not_split_the_resident_size_gives_all_of_it(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, {"proc/7/status": "VmRSS:\t400 kB", "proc/7/stat": stat(1)})
    process = read_process(roots, 7)
    assert process is not None
    assert process.own_bytes == process.resident_bytes == 400 * 1024


def test_a_process_that_is_not_there_or_half_gone_is_none(tmp_path: Path) -> None:
    trees = ({}, {"proc/7/status": STATUS}, {"proc/7/stat": stat(1)}, {"proc/7/status": "", "proc/7/stat": ""})
    for number, tree in enumerate(trees):
        assert read_process(write_tree(tmp_path / str(number), tree), 7) is None


def test_a_child_that_has_ended_and_is_not_reaped_holds_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert read_process(HostRoots(), child.pid) is None
    child.wait()
    assert read_process(HostRoots(), child.pid) is None


def test_this_process_is_found_in_the_real_tree() -> None:
    process = read_process(HostRoots(), os.getpid())
    assert process is not None
    assert process.anon_bytes > 1 << 20
    assert process.start_ticks > 0


def test_what_was_read_from_storage_is_told(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, {"proc/42/io": "rchar: 999\nwchar: 1\nread_bytes: 4096000\nwrite_bytes: 5\n"})
    assert read_storage_bytes(roots, 42) == 4_096_000


@pytest.mark.parametrize("text", ["", "read_bytes", "read_bytes: x", "read_bytes: -4"])
def test_a_kernel_that_does_not_tell_what_was_read_counts_nothing(tmp_path: Path, text: str) -> None:
    roots = write_tree(tmp_path, {"proc/42/io": text})
    assert read_storage_bytes(roots, 42) == read_storage_bytes(roots, 43) == 0
