"""Instructions of a token: what is made of the emulator's counts, and the plugin that counts."""

from __future__ import annotations

import pytest

from bench.emulated.guest import PIECE, mark
from bench.instructions import Counts, Step, between, by_run, cpu_description, parse_counts


def test_a_token_has_its_share_of_what_lies_between_two_marks() -> None:
    counts = between(Counts(100, 10, 20, 1, 0), Counts(500, 50, 60, 9, 4), tokens=4)
    assert counts == Counts(100, 10, 10, 2, 1)


def test_marks_are_told_apart_by_position_and_the_prompt_s_are_the_last() -> None:
    lines = ["0 10 0 0 0 0", "1 17 1 2 3 4", "2 20 1 2 3 4", "3 29 1 2 3 4", "4 30 1 2 3 4"]
    lines.append(f"5 {30 + 6 * PIECE} 1 2 3 4")
    runs = by_run(parse_counts("\n".join(lines) + "\n"), [Step(1, 32), Step(3, 2000)])
    assert {run: counts.all for run, counts in runs.items()} == {
        "1 row at 32": 7,
        "3 rows at 2,000": 3,
        f"prompt, {PIECE} at once": 6,
    }
    assert runs["1 row at 32"] == Counts(7, 1, 2, 3, 4)


def test_counts_of_a_guest_that_ended_early_are_refused() -> None:
    with pytest.raises(KeyError):
        by_run(parse_counts("0 1 0 0 0 0\n"), [Step(1, 32)])


def test_the_processor_is_described_once_for_each_of_its_cpus() -> None:
    text = cpu_description(0xD0B, cpus=3)
    blocks = [dict(line.split(":") for line in block.splitlines()) for block in text.strip().split("\n\n")]
    assert [int(block["processor\t"]) for block in blocks] == [0, 1, 2]
    assert {int(block["CPU part\t"], 16) for block in blocks} == {0xD0B}
    assert {int(block["CPU implementer\t"], 16) for block in blocks} == {0x41}


def test_a_mark_asks_for_a_process_that_cannot_be() -> None:
    mark(0)
    mark(255)
