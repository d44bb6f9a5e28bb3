"""No clock at boot, then a jump of decades: nothing that a client feels may depend on the time of day."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service_under_test import InProcess

import magnitude.intake

INTAKE = sorted(Path(magnitude.intake.__file__).parent.glob("*.py"))
# What tells the time of day; `time.time` may only stand as the default of the clock that people see.
WALL_CLOCKS = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "clock_gettime"}
PARAMETERS = {("app.py", "build_app")}


def wall_clock_reads(tree: ast.Module) -> list[tuple[str, str]]:
    """Names of the functions that read the time of day, with what they read."""
    found: list[tuple[str, str]] = []

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if isinstance(node, ast.Attribute) and node.attr in WALL_CLOCKS:
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if owner in {"time", "datetime", "date"}:
                found.append((function, f"{owner}.{node.attr}"))
        if isinstance(node, ast.ImportFrom) and node.module in {"time", "datetime"}:
            found.append((function, f"from {node.module}"))
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(tree, "")
    return found


def test_a_read_of_the_wall_clock_is_found() -> None:
    source = "import time\ndef f():\n    return time.time()\nasync def g():\n    return datetime.now()\n"
    assert wall_clock_reads(ast.parse(source)) == [("f", "time.time"), ("g", "datetime.now")]


@pytest.mark.parametrize("path", INTAKE, ids=lambda path: path.name)
def test_intake_reads_the_wall_clock_only_where_it_is_handed_in(path: Path) -> None:
    reads = wall_clock_reads(ast.parse(path.read_text()))
    assert [read for read in reads if (path.name, read[0]) not in PARAMETERS] == []


class Jumping:
    """Starts in 1970; each read is somewhere else in time."""

    def __init__(self, jumps: list[float]) -> None:
        self._jumps, self._at = jumps, 0

    def __call__(self) -> float:
        self._at = (self._at + 1) % len(self._jumps)
        return self._jumps[self._at]


@given(st.lists(st.floats(0, 3e9), min_size=1, max_size=6))
def test_however_the_wall_clock_jumps_deadlines_and_times_stay(jumps: list[float]) -> None:
    service = InProcess(clock=lambda: 40.0, wall_clock=Jumping(jumps))
    for stream in (False, True):
        reply = service.chat(stream=stream, headers={"X-Magnitude-Deadline-Ms": "60000"})
        assert reply.status_code == 200
    assert [task.deadline.at_s for task in service.inference.tasks if task.deadline] == [100.0, 100.0]
    assert service.count("magnitude_answer_seconds_sum", model="tiny-chat") == 0.0
