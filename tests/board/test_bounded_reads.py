from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from magnitude.board.bounded_reads import BoundedReads

PATIENCE_S = 30.0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What reads wait for that hang; open at the end."""
    event = threading.Event()
    yield event
    event.set()


def hung(gate: threading.Event) -> int:
    gate.wait(PATIENCE_S)
    return 7


def reading_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "board-reads"}


def test_every_read_gives_its_value_or_its_error() -> None:
    reads = BoundedReads(clock=lambda: 5.0)
    found = reads.run({"a": lambda: 1, "b": lambda: 1 // 0, "c": lambda: 3})
    reads.close()
    assert (found["a"].value, found["c"].value, found["a"].at_s) == (1, 3, 5.0)
    assert isinstance(found["b"].error, ZeroDivisionError)


def test_a_read_that_hangs_costs_neither_those_before_it_nor_those_after_it(gate: threading.Event) -> None:
    reads = BoundedReads(limit_s=0.02)
    found = reads.run({"a": lambda: 1, "bad": lambda: hung(gate), "c": lambda: 3})
    assert {key: result.value for key, result in found.items()} == {"a": 1, "c": 3}
    assert reads.stuck == {"bad"}
    reads.close()


def test_what_hangs_is_not_asked_again_and_takes_one_thread_however_often_it_is_due(gate: threading.Event) -> None:
    asked = []

    def bad() -> int:
        asked.append(1)
        return hung(gate)

    before = reading_threads()
    reads = BoundedReads(limit_s=0.02)
    for number in range(50):
        found = reads.run({"bad": bad, "good": lambda number=number: number})  # type: ignore[misc]
        assert found["good"].value == number
    assert len(asked) == 1
    assert len(reading_threads() - before) == 2
    reads.close()


def test_what_a_slow_read_gives_in_the_end_comes_with_a_later_run(gate: threading.Event) -> None:
    reads = BoundedReads(limit_s=0.02)
    assert "bad" not in reads.run({"bad": lambda: hung(gate)})
    gate.set()
    assert reads.wait(["bad"], PATIENCE_S)["bad"].value == 7
    assert not reads.stuck
    # From now on it has its own thread, so that it can be slow again.
    reads.run({"bad": lambda: 8})
    assert reads.wait(["bad"], PATIENCE_S)["bad"].value == 8
    reads.close()


def test_a_result_is_given_once(gate: threading.Event) -> None:
    reads = BoundedReads(limit_s=0.02)
    first = reads.run({"good": lambda: "old", "bad": lambda: hung(gate)})
    assert first["good"].value == "old"
    gate.set()
    # What came before the read that hung must not come back with it, over what has been read since.
    assert set(reads.wait(["bad"], PATIENCE_S)) == {"bad"}
    assert reads.run({"good": lambda: "new"})["good"].value == "new"
    reads.close()


def test_several_reads_that_hang_each_have_their_thread(gate: threading.Event) -> None:
    reads = BoundedReads(limit_s=0.02)
    found = reads.run({f"bad{n}": lambda: hung(gate) for n in range(3)} | {"good": lambda: 1})
    assert found["good"].value == 1
    assert reads.stuck == {"bad0", "bad1", "bad2"}
    reads.close()


def test_a_read_known_to_be_slow_is_not_waited_for(gate: threading.Event) -> None:
    reads = BoundedReads(limit_s=PATIENCE_S, alone={"slow"})
    assert reads.run({"slow": lambda: hung(gate), "good": lambda: 1})["good"].value == 1
    gate.set()
    assert reads.wait(["slow"], PATIENCE_S)["slow"].value == 7
    reads.close()


def test_threads_end_when_their_reads_are_no_more(gate: threading.Event) -> None:
    before = reading_threads()
    reads = BoundedReads(limit_s=0.02)
    reads.run({"bad": lambda: hung(gate), "good": lambda: 1})
    ours = reading_threads() - before
    assert len(ours) == 2
    reads.close()
    gate.set()
    for thread in ours:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in ours)
