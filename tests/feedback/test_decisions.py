from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.feedback.decisions import REPEATED_S, DecisionRow, Repeats, row_of
from magnitude.policy.terms import Decided
from tests.feedback.record_samples import STRATEGY, decision, stamp


def test_a_decision_of_the_loop_is_kept_with_its_figures() -> None:
    decided = Decided("revert", "prefill", "tokens=33", "4 threads", "2 threads", "p95 grew", 12.0, -0.1)
    assert row_of(decided, "m", stamp(), STRATEGY) == DecisionRow(
        stamp=stamp(),
        source="strategy",
        kind="revert",
        reason="p95 grew",
        model="m",
        part="prefill",
        key="tokens=33",
        from_id="4 threads",
        to_id="2 threads",
        what="prefill (tokens=33): 4 threads to 2 threads",
        delay_s=12.0,
        gain=-0.1,
        strategy=STRATEGY,
    )


def test_words_leave_out_what_a_decision_does_not_say() -> None:
    assert row_of(Decided("dropped", "", "", "4 threads", "", "memory"), "m", stamp()).what == "4 threads"
    assert row_of(Decided("start", "", "", "", "", "cold"), "m", stamp()).what == ""


@given(st.lists(st.tuples(st.floats(0, 90), st.integers(0, 3)), max_size=100))
def test_every_decision_is_kept_or_counted(told: list[tuple[float, int]]) -> None:
    repeats, now_s = Repeats(), 0.0
    kept: list[DecisionRow] = []
    counted = 0
    for step_s, which in told:
        now_s += step_s
        row = decision(source="thermal", kind="caps", what=str(which), when=stamp(at_s=now_s))
        passed = repeats.pass_on(row)
        if passed is None:
            counted += 1
        else:
            kept.append(passed)
            counted -= passed.repeats
    assert len(kept) + sum(row.repeats for row in kept) + counted == len(told)
    last: dict[str, float] = {}
    for row in kept:
        assert row.stamp.at_s - last.get(row.what, -REPEATED_S) >= REPEATED_S
        last[row.what] = row.stamp.at_s


def test_decisions_that_all_differ_take_a_bounded_room() -> None:
    repeats = Repeats()
    for number in range(5000):
        assert repeats.pass_on(decision(source="power", what=str(number))) is not None
    assert len(repeats._passed) <= 256
