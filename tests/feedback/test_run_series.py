import pytest

from magnitude.engine.protocol import StepGroup, StepKind, Steps
from magnitude.feedback.metrics import Metrics
from magnitude.feedback.run_series import MAX_SHAPES, RunSeries, RunTimes
from magnitude.feedback.running import HALF_LIFE_S


def report(*, rows: int = 1, runs: int = 10, total_s: float = 0.1, model: str = "m") -> Steps:
    group = StepGroup(model=model, kind="decode", rows=rows, tokens=1, runs=runs, total_s=total_s, max_s=total_s)
    return Steps(groups=[group])


def test_runs_of_one_shape_are_one_series_with_a_moving_mean() -> None:
    now_s = 0.0
    series = RunSeries(lambda: now_s)
    for _ in range(200):
        series.add(report(total_s=0.1))
    now_s = 12 * HALF_LIFE_S
    for _ in range(200):
        series.add(report(total_s=0.3))
    series.add(report(rows=4, total_s=0.5))
    one, four = series.figures()
    assert (one.rows, one.runs, four.rows, four.runs) == (1, 4000, 4, 10)
    assert abs(one.mean_s - 0.03) < 0.001  # the cold runs are forgotten
    assert abs(four.mean_s - 0.05) < 1e-9


def test_a_report_counts_as_often_as_there_were_runs_in_it() -> None:
    series = RunSeries(lambda: 0.0)
    series.add(report(runs=99, total_s=0.99))
    series.add(report(runs=1, total_s=1.0))
    (figures,) = series.figures()
    assert figures.mean_s == pytest.approx(0.0199)
    assert figures.p95_s < 0.012


def test_steps_of_one_sequence_are_told_by_model() -> None:
    series = RunSeries(lambda: 0.0)
    series.add(report(runs=10, total_s=0.1))
    series.add(report(rows=4, total_s=0.5))
    series.add(report(runs=5, total_s=0.1, model="other"))
    steps = series.single_steps()
    assert {model: (one.runs, round(one.mean_s, 4)) for model, one in steps.items()} == {
        "m": (10, 0.01),
        "other": (5, 0.02),
    }


def test_the_number_of_shapes_is_bounded() -> None:
    series = RunSeries(lambda: 0.0)
    for rows in range(MAX_SHAPES + 50):
        series.add(report(rows=rows))
    assert len(series.figures()) == MAX_SHAPES


def test_prometheus_reads_them_by_shape() -> None:
    series, metrics = RunSeries(lambda: 0.0), Metrics()
    series.add(report(rows=4, total_s=0.2))
    metrics.watch_runs(series.figures)
    text = metrics.render().decode()
    assert 'magnitude_engine_runs_total{kind="decode",model="m",rows="4",tokens="1"} 10.0' in text
    assert 'magnitude_engine_run_seconds{figure="mean",kind="decode",model="m",rows="4",tokens="1"} 0.02' in text


def test_times_are_told_by_phase_and_apart_from_pauses() -> None:
    series = RunSeries(lambda: 0.0)
    kinds: tuple[StepKind, ...] = ("decode", "verify", "prefill", "encode")
    for total_s, kind in enumerate(kinds, start=1):
        group = StepGroup(model="m", kind=kind, rows=1, tokens=1, runs=1, total_s=total_s, max_s=total_s)
        series.add(Steps(groups=[group], paused_s=0.5))
    assert series.times == RunTimes(decode_s=3.0, prefill_s=7.0, paused_s=2.0)
