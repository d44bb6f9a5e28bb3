from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from magnitude.engine.session_spec import SessionSpec
from magnitude.feedback.circumstances import Circumstances
from magnitude.feedback.decisions import DecisionRow
from magnitude.feedback.history import lately
from magnitude.feedback.records import TaskRow
from magnitude.feedback.timeline import Lane, Span, Timeline, choices_of, timeline_of
from magnitude.policy.strategy import Strategy
from tests.feedback.record_samples import NOW_S, decision, row, stamp

AT_S = 10_000.0
NOW = stamp(NOW_S, AT_S)
ONE = Strategy(prefill=SessionSpec(threads=1), decode=SessionSpec(threads=1))
TWO = Strategy(prefill=SessionSpec(threads=2), decode=SessionSpec(threads=2), variant="m-int4")


def decided(ago_s: float, **fields: Any) -> DecisionRow:
    return decision(when=stamp(NOW_S - ago_s, AT_S - ago_s), **fields)


def ran(ago_s: float, strategy: Strategy | None = None, **fields: Any) -> TaskRow:
    task = row(when=stamp(NOW_S - ago_s, AT_S - ago_s), **fields)
    return msgspec.structs.replace(task, circumstances=Circumstances(strategy=strategy, temperature_c=50.0))


def drawn(rows: list[DecisionRow | TaskRow], since_s: float = 1000.0) -> Timeline:
    """The timeline of rows in any order."""
    newest_first = sorted(rows, key=lambda each: -each.stamp.at_s)
    decisions = [each for each in newest_first if isinstance(each, DecisionRow)]
    tasks = [each for each in newest_first if isinstance(each, TaskRow)]
    return timeline_of(lately(decisions, tasks, NOW, since_s, 1000), since_s)


def lane(timeline: Timeline, part: str) -> list[tuple[float, float, str]]:
    (found,) = [each for each in timeline.lanes if each.part == part]
    return [(span.begin_ago_s, span.end_ago_s, span.choice) for span in found.spans]


def test_each_part_is_in_force_from_its_switch_to_the_next() -> None:
    timeline = drawn(
        [
            decided(900, kind="start", to_id="2 threads"),
            decided(500, kind="switch", from_id="2 threads", to_id="1 thread"),
            decided(400, kind="trial", from_id="1 thread", to_id="4 threads"),
            decided(300, kind="kept", from_id="1 thread", to_id="4 threads"),
            decided(100, kind="revert", from_id="1 thread", to_id="2 threads"),
        ]
    )
    assert lane(timeline, "decode") == [(900, 500, "2 threads"), (500, 100, "1 thread"), (100, 0, "2 threads")]
    assert [one.ago_s for one in timeline.decisions] == [900, 500, 400, 300, 100]


def test_a_start_says_what_is_in_force_of_all_parts() -> None:
    timeline = drawn(
        [
            decided(900, kind="start", part="", strategy=TWO),
            decided(500, kind="trial", part="decode", strategy=TWO),
            decided(450, kind="kept", part="prefill", strategy=TWO),
            decided(400, kind="start", part="", strategy=ONE),  # the service was started again
        ]
    )
    assert lane(timeline, "prefill") == [
        (900, 400, "2 threads, pieces of 128"),
        (400, 0, "1 thread, pieces of 128"),
    ]
    assert lane(timeline, "decode") == [(900, 400, "2 threads"), (400, 0, "1 thread")]
    assert {each.part for each in timeline.lanes} == {"prefill", "decode"}


def test_parts_that_change_together_keep_their_changes() -> None:
    # Both are told before either is in force.
    timeline = drawn(
        [
            decided(900, kind="start", part="", strategy=TWO),
            decided(500, kind="situation", part="decode", to_id="1 thread", strategy=TWO),
            decided(500, kind="situation", part="prefill", to_id="1 thread, pieces of 128", strategy=TWO),
            decided(300, kind="retired", part="decode", to_id="", strategy=ONE),
        ]
    )
    assert lane(timeline, "decode") == [(900, 500, "2 threads"), (500, 0, "1 thread")]
    assert lane(timeline, "prefill") == [
        (900, 500, "2 threads, pieces of 128"),
        (500, 0, "1 thread, pieces of 128"),
    ]


def test_before_the_first_decision_tasks_tell_what_was_in_force() -> None:
    timeline = drawn([ran(800, TWO), ran(700, TWO), decided(500, to_id="1 thread", strategy=TWO), ran(499, TWO)])
    # The last task, of four seconds, ended just after the switch: it had begun with what was in force before.
    assert lane(timeline, "decode") == [(800, 500, "2 threads"), (500, 0, "1 thread")]


def test_what_was_prepared_late_is_in_force_from_the_task_that_began_by_it() -> None:
    timeline = drawn(
        [
            decided(900, kind="start", part="", strategy=TWO),
            decided(500, kind="pinned", part="", to_id="all by 1 thread", strategy=TWO),
            decided(300, kind="prepared", part="", to_id="1 thread", strategy=TWO),
            ran(290, TWO),
            ran(200, ONE),
        ]
    )
    assert lane(timeline, "decode") == [(900, 200, "2 threads"), (200, 0, "1 thread")]


def test_pieces_that_go_by_a_prompts_length_are_no_switch() -> None:
    short = msgspec.structs.replace(TWO, prefill_chunk=32)
    timeline = drawn([decided(900, kind="start", part="", strategy=TWO), ran(500, short), ran(400, TWO)])
    assert lane(timeline, "prefill") == [(900, 0, "2 threads, pieces of 128")]


def test_a_graph_of_its_own_is_another_choice() -> None:
    def by(graph: str) -> Strategy:
        session = SessionSpec(graph_file=graph, threads=2)
        return Strategy(prefill=session, decode=session)

    timeline = drawn([decided(900, kind="start", part="", strategy=by("g.onnx")), ran(500, TWO)])
    assert lane(timeline, "decode") == [(900, 500, "g.onnx, 2 threads"), (500, 0, "2 threads")]
    timeline = drawn([decided(900, kind="start", part="", strategy=by("g.onnx")), ran(500, by("g.onnx"))])
    assert lane(timeline, "prefill") == [(900, 0, "g.onnx, 2 threads, pieces of 128")]


def test_an_encoder_has_no_lane_of_answers() -> None:
    timeline = drawn([ran(800, TWO, kind="embed", model="e")])
    assert timeline.lanes == [
        Lane(model="e", part="encode", spans=[Span(begin_ago_s=800, end_ago_s=0, choice="2 threads")])
    ]


def test_choices_are_named_as_decisions_name_them() -> None:
    assert choices_of(TWO) == {
        "decode": "2 threads",
        "prefill": "2 threads, pieces of 128",
        "encode": "2 threads",
        "variant": "m-int4",
    }


def test_what_no_clock_can_date_is_left_out() -> None:
    unset = decision(when=stamp(12.0, 5.0, "boot-0"))
    before = decision(when=stamp(NOW_S - 60, 5.0, "boot-0"))
    found = lately([decided(10), unset, before], [], NOW, 1000.0, 10)
    assert [each.stamp.wall_s for each in found.decisions] == [NOW_S - 10, NOW_S - 60]


def test_a_clock_that_is_not_set_gives_no_time_of_day() -> None:
    now = stamp(30.0, 30.0)
    history = lately([decision(when=stamp(20.0, 20.0))], [], now, 1000.0, 10)
    (moment,) = timeline_of(history, 1000.0).decisions
    assert (moment.ago_s, moment.wall_s) == (10.0, None)


def test_more_than_was_asked_for_is_said() -> None:
    rows = [decided(ago_s) for ago_s in range(10, 20)]
    assert lately(rows, [], NOW, 1000.0, 9).cut_off
    assert not lately(rows, [], NOW, 1000.0, 10).cut_off
    assert not lately(rows, [], NOW, 18.5, 9).cut_off


@given(
    st.lists(
        st.tuples(
            st.floats(0, 900),
            st.sampled_from(["start", "switch", "revert", "trial", "kept", "situation", "prepared"]),
            st.sampled_from(["decode", "prefill"]),
            st.sampled_from(["1 thread", "2 threads", "4 threads"]),
        ),
        max_size=30,
    )
)
def test_spans_follow_each_other_up_to_now_and_never_repeat(told: list[tuple[float, str, str, str]]) -> None:
    rows: list[DecisionRow | TaskRow] = [
        decided(ago_s, kind=kind, part=part, to_id=choice) for ago_s, kind, part, choice in told
    ]
    for found in drawn(rows).lanes:
        assert found.spans[-1].end_ago_s == 0.0
        for one, after in zip(found.spans, found.spans[1:], strict=False):
            assert one.begin_ago_s >= one.end_ago_s == after.begin_ago_s
            assert one.choice != after.choice
