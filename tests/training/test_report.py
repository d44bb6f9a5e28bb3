"""The report: what was proven, where it would lose, and nothing that a browser runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnitude.engine.session_spec import SessionSpec
from magnitude.errors import ConfigError, MagnitudeError
from magnitude.policy.learned import Choice, Entry, Rejected
from magnitude.policy.trained import Gain, Loss, ModelTable, Proof, Trained
from magnitude.policy.tree import default_tree
from magnitude.training.reading import Skipped
from magnitude.training.report import gain_in_words, write_report

GAIN = Gain(
    board="pi5",
    model="chat",
    part="decode",
    method="table",
    gain=0.097,
    low=0.079,
    high=0.115,
    tasks=440,
    all_tasks=711,
)
TWO = Choice(session=SessionSpec(threads=2))


def trained(*losses: Loss, model: str = "chat") -> Trained:
    table = ModelTable(
        board="pi5",
        model=model,
        model_hash="ab",
        entries=(Entry(part="decode", key="rows=1", chosen=TWO),),
        rejected=(Rejected(part="decode", key="rows=2", choice=TWO, reason="5.0% of 40 tasks failed"),),
    )
    proof = Proof(
        tasks=711, files=1, boards=("pi5",), tolerance=0.02, gains=(GAIN,), losses=losses, notes=("a | note",)
    )
    return Trained(tables=(table,), tree=default_tree(), proof=proof)


def test_a_gain_is_told_with_its_interval() -> None:
    assert gain_in_words(GAIN) == "9.7 % (7.9 to 11.5)"


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_the_report_says_what_was_gained_chosen_and_rejected(tmp_path: Path, name: str) -> None:
    write_report(tmp_path / name, trained(), [Skipped(path="x.db", why="torn", hint="Copy it anew")])
    said = (tmp_path / name).read_text("utf-8")
    for part in (
        "9.7 % (7.9 to 11.5)",
        "440 of 711",
        "2 threads",
        "5.0% of 40 tasks failed",
        "compute-bound",
        "x.db",
    ):
        assert part in said
    assert "It loses nowhere by more than 2%" in said


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_a_refused_table_says_so_first(tmp_path: Path, name: str) -> None:
    loss = Loss(board="pi5", model="chat", part="decode", method="table", key="", why="loses 5.0% of the time")
    write_report(tmp_path / name, trained(loss))
    said = (tmp_path / name).read_text("utf-8")
    assert said.index("Refused: it would lose in 1 place.") < said.index("Expected gain")
    assert "loses 5.0% of the time" in said


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_where_nothing_was_learned_the_report_praises_nothing(tmp_path: Path, name: str) -> None:
    nothing = Trained(proof=Proof(tasks=12, files=1, boards=("pi5",), tolerance=0.02))
    write_report(tmp_path / name, nothing)
    said = (tmp_path / name).read_text("utf-8")
    assert "Nothing was learned" in said
    for part in ("Trained table", "loses nowhere", nothing.trained_id, "Expected gain"):
        assert part not in said


def test_a_name_from_a_record_is_text_in_the_page(tmp_path: Path) -> None:
    write_report(tmp_path / "r.html", trained(model="<script>alert(1)</script>"))
    said = (tmp_path / "r.html").read_text("utf-8")
    assert "<script>" not in said
    assert "&lt;script&gt;" in said


def test_a_bar_in_a_text_does_not_break_a_table(tmp_path: Path) -> None:
    write_report(tmp_path / "r.md", trained(model="a|b"), [Skipped(path="a|b.db", why="torn", hint="")])
    assert "a\\|b.db" in (tmp_path / "r.md").read_text("utf-8")


def test_another_kind_of_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"report\.doc") as raised:
        write_report(tmp_path / "report.doc", trained())
    assert ".html" in raised.value.hint


def test_a_report_that_cannot_be_written_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(MagnitudeError, match="cannot be written") as raised:
        write_report(tmp_path / "none" / "report.md", trained())
    assert raised.value.hint
