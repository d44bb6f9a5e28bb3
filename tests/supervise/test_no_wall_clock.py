"""Boards start in 1970 and jump to today: nothing that supervises may look at the clock on the wall."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import magnitude

PACKAGE = Path(magnitude.__file__).parent
WATCHING = sorted([*(PACKAGE / "supervise").glob("*.py"), PACKAGE / "service_loop.py", PACKAGE / "reload.py"])
# `time.time` and its kin, and everything that makes a date of now.
WALL = {"time", "time_ns", "gmtime", "localtime", "ctime", "now", "utcnow", "today", "CLOCK_REALTIME"}


@pytest.mark.parametrize("source", WATCHING, ids=lambda path: path.name)
def test_durations_and_deadlines_of_supervision_are_monotonic(source: Path) -> None:
    read = {node.attr for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Attribute)}
    assert not read & WALL
