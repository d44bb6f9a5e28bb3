"""With the real /proc: the score of a process is given on to its children, and lowering it needs a privilege."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kernel_trees import write_tree
from magnitude.board.oom_score import PROTECTED, protect_from_oom
from magnitude.engine.process import OOM_SCORE_ADJ

# The service's way: protect itself, then start a child, which makes itself the first to go as the engine does.
CHILD = """
from magnitude.engine.process import go_first_for_memory
go_first_for_memory()
print(open("/proc/self/oom_score_adj").read())
"""
FAMILY = f"""
import subprocess, sys
from magnitude.board.oom_score import protect_from_oom
protect_from_oom()
print(open("/proc/self/oom_score_adj").read(), flush=True)
subprocess.run([sys.executable, "-c", {CHILD!r}], check=True)
"""


def test_a_child_of_a_protected_service_goes_first_all_the_same() -> None:
    told = subprocess.run([sys.executable, "-c", FAMILY], capture_output=True, text=True, check=True).stdout.split()
    service, engine = map(int, told)
    assert engine == OOM_SCORE_ADJ > service


def test_protection_without_the_right_to_it_is_no_error(tmp_path: Path) -> None:
    assert not protect_from_oom(write_tree(tmp_path, {}))
    roots = write_tree(tmp_path, {"proc/self/oom_score_adj": 0})
    assert protect_from_oom(roots)
    assert int((tmp_path / "proc/self/oom_score_adj").read_text()) == PROTECTED


def test_what_the_unit_has_set_lower_stays(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, {"proc/self/oom_score_adj": -900})
    assert protect_from_oom(roots)
    assert int((tmp_path / "proc/self/oom_score_adj").read_text()) == -900
