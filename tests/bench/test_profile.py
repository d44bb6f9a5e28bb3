"""Summing up ONNX Runtime's profile."""

from typing import Any

import pytest

from bench.profile import summarise


def node(operator: str, ts: int, dur: int, shapes: tuple[list[int], list[int]] | None = None) -> dict[str, Any]:
    arguments: dict[str, Any] = {"op_name": operator}
    if shapes is not None:
        arguments["input_type_shape"] = [{"float": shapes[0]}]
        arguments["output_type_shape"] = [{"float": shapes[1]}]
    return {"cat": "Node", "name": f"n_{operator}_kernel_time", "ts": ts, "dur": dur, "args": arguments}


def run(ts: int, dur: int) -> dict[str, Any]:
    return {"cat": "Session", "name": "model_run", "ts": ts, "dur": dur}


EVENTS = [
    run(0, 900), node("Add", 10, 500),
    run(1000, 100), node("Add", 1010, 20), node("MatMul", 1040, 50, ([1, 4, 576], [1, 4, 1536])),
    run(2000, 100), node("Add", 2010, 30), node("MatMul", 2050, 60, ([1, 4, 576], [1, 4, 1536])),
]  # fmt: skip


def test_warm_up_runs_do_not_count() -> None:
    profile = summarise(EVENTS, "prefill", 1)
    assert profile.runs == 2
    assert profile.run_ms == 0.1
    assert profile.outside_ms == pytest.approx(0.02)


def test_matrix_products_are_told_apart_by_their_widths_and_the_dearest_comes_first() -> None:
    rows = summarise(EVENTS, "prefill", 1).operators
    assert [(row.operator, row.calls) for row in rows] == [("MatMul 576 to 1536", 1.0), ("Add", 1.0)]
    assert rows[0].share == pytest.approx(0.55)
    assert rows[1].time_ms == pytest.approx(0.025)


def test_a_profile_without_a_run_left_is_refused() -> None:
    with pytest.raises(ValueError, match="no run"):
        summarise(EVENTS, "decode", 3)
