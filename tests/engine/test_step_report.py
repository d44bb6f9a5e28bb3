from __future__ import annotations

from magnitude.engine.session_spec import SessionSpec
from magnitude.engine.step_report import PERIOD_S, StepReport


def test_runs_of_one_shape_are_added_up():
    report = StepReport()
    report.add("m", "decode", 4, 1, run_s=0.2, now_s=1.0)
    report.add("m", "decode", 4, 1, run_s=0.3, now_s=1.1)
    report.add("m", "prefill", 1, 100, run_s=0.5, now_s=1.2)
    steps = report.due(1.2, idle=True)
    assert steps is not None
    decode, prefill = steps.groups
    assert (decode.rows, decode.tokens, decode.runs, decode.total_s, decode.max_s) == (4, 1, 2, 0.5, 0.3)
    assert (prefill.kind, prefill.rows, prefill.tokens, prefill.runs) == ("prefill", 1, 128, 1)


def test_nothing_is_said_twice_and_nothing_when_nothing_ran():
    report = StepReport()
    assert report.due(0.0, idle=True) is None
    report.add("m", "encode", 1, 1, run_s=0.1, now_s=0.0)
    assert report.due(0.0, idle=True) is not None
    assert report.due(9.0, idle=True) is None


def test_while_work_goes_on_it_is_said_now_and_then():
    report = StepReport()
    report.add("m", "decode", 1, 1, run_s=0.1, now_s=10.0)
    assert report.due(10.0 + PERIOD_S / 2, idle=False) is None
    assert report.due(10.0 + PERIOD_S, idle=False) is not None


def test_pauses_are_told_once_and_are_in_no_runs_time():
    report = StepReport()
    report.add("m", "decode", 1, 1, run_s=0.1, now_s=10.0)
    report.paused(0.25)
    report.paused(0.25)
    first = report.due(11.0, idle=False)
    report.add("m", "decode", 1, 1, run_s=0.1, now_s=11.0)
    second = report.due(12.0, idle=False)
    assert first is not None and second is not None
    assert (first.paused_s, first.groups[0].total_s) == (0.5, 0.1)
    assert second.paused_s == 0.0


def test_runs_of_different_sessions_are_told_apart():
    report = StepReport()
    session = SessionSpec(threads=1)
    report.add("m", "decode", 1, 1, run_s=0.1, now_s=1.0)
    report.add("m", "decode", 1, 1, run_s=0.2, now_s=1.0, session=session)
    report.add("m", "decode", 1, 1, run_s=0.2, now_s=1.0, session=SessionSpec(threads=1))
    steps = report.due(1.0, idle=True)
    assert steps is not None
    assert [(group.session, group.runs, group.total_s) for group in steps.groups] == [
        (None, 1, 0.1),
        (session, 2, 0.4),
    ]


def test_positions_are_counted_as_they_were_also_where_lengths_are_rounded():
    report = StepReport()
    report.add("m", "prefill", 1, 100, run_s=0.1, now_s=1.0)
    report.add("m", "prefill", 1, 70, run_s=0.1, now_s=1.0)
    report.add("m", "encode", 4, 24, run_s=0.1, now_s=1.0)
    steps = report.due(1.0, idle=True)
    assert steps is not None
    assert [(group.tokens, group.runs, group.positions) for group in steps.groups] == [(128, 2, 170), (32, 1, 96)]
