"""Boards start in 1970 and jump: whoever reads the time of day is named here, with what it is for."""

from __future__ import annotations

import ast
from pathlib import Path

import magnitude

SOURCE = Path(magnitude.__file__).parent
READS = {
    *(("time", name) for name in ("time", "time_ns", "localtime", "gmtime", "ctime")),
    *(("datetime", name) for name in ("now", "utcnow", "today", "fromtimestamp")),
    ("date", "today"),
}
# Text that people read, and stamps that are kept for them. Nothing here is subtracted from anything.
FOR_PEOPLE = {
    "board/boot.py": "the stamp of what is kept; ages are made in there, safely",
    "cli/show.py": "when a model was imported",
    "cli/show_adapter.py": "when an adapter was imported",
    "cli/strategy_train.py": "when a table was trained",
    "cli/support.py": "an archive's name",
    "cli/timeline.py": "when something was decided",
    "cli/tune.py": "when a model was tuned",
    "doctor/checks/boot_slot.py": "the day of a firmware's release, as text",
    "doctor/checks/clock.py": "looks at the clock itself",
    "doctor/context.py": "hands the clock to that check",
    "intake/app.py": "`created` of answers",
    "log.py": "the time of a line",
    "models/importing/adapter.py": "when it was imported",
    "models/importing/parent.py": "when it was imported",
    "policy/dumps.py": "when something was learned",
    "schedule/slot_files.py": "when a conversation was saved, for people",
    "schedule/strategy_dumps.py": "when something was learned",
    "text/template.py": "templates may print the date",
}


def reads_of_the_wall_clock(path: Path) -> bool:
    return any(
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (node.value.id, node.attr) in READS
        for node in ast.walk(ast.parse(path.read_text()))
    )


def test_the_time_of_day_is_read_for_people_only() -> None:
    found = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if reads_of_the_wall_clock(path)}
    assert found == set(FOR_PEOPLE)
