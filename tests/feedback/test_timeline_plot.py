from __future__ import annotations

from pathlib import Path

import pytest

from magnitude.errors import ConfigError
from magnitude.feedback.decisions import DecisionRow
from magnitude.feedback.records import TaskRow
from magnitude.feedback.timeline import Timeline
from magnitude.feedback.timeline_plot import draw
from tests.feedback.test_timeline import ONE, TWO, decided, drawn, ran


def busy() -> Timeline:
    rows: list[DecisionRow | TaskRow] = [
        ran(950, TWO),
        decided(800, part="prefill", to_id="1 thread, pieces of 128", strategy=TWO),
        decided(300, kind="revert", part="prefill", to_id="2 threads, pieces of 128", strategy=ONE),
        decided(200, source="thermal", model="", part="", kind="caps"),
        ran(100, TWO, outcome="timed_out"),
        ran(90, TWO, kind="embed", model="e"),
    ]
    return drawn(rows)


def texts(path: Path) -> str:
    """What the picture says: matplotlib writes each text into a comment beside its outlines."""
    return path.read_text()


def test_the_picture_names_parts_choices_and_what_the_board_decided(tmp_path: Path) -> None:
    target = tmp_path / "timeline.svg"
    draw(busy(), target)
    for text in ("decode", "prefill", "encode", "1 thread, pieces of 128", "thermal: 1", "generate, failed"):
        assert f"<!-- {text} -->" in texts(target), text


def test_the_same_timeline_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw(busy(), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_an_empty_hour_is_a_picture_that_says_so(tmp_path: Path) -> None:
    draw(drawn([], since_s=60.0), tmp_path / "empty.svg")
    for text in ("no strategy was recorded", "no temperature was recorded", "no task was recorded"):
        assert f"<!-- {text} -->" in texts(tmp_path / "empty.svg")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no kind of plot"):
        draw(busy(), tmp_path / "timeline.txt")
    with pytest.raises(ConfigError, match="cannot be written"):
        draw(busy(), tmp_path / "nowhere/timeline.svg")
