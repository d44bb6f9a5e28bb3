"""Comparisons on held-back time: what can be compared, what it comes to, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.learned import Choice
from magnitude.training.cells import SUMS, Cell, ServedModel, Tried
from magnitude.training.costs import TrainingRules
from magnitude.training.validation import Comparison, compare, folds_of, gain_of, judged
from magnitude.training.work import BLOCKS

ALL = slice(0, BLOCKS)
RULES = TrainingRules()


def tried(threads: int, costs_s: Sequence[float], failed: Sequence[int] = ()) -> Tried:
    """One choice: so many seconds for a unit in each block (0: no task there), and failures of the same length."""
    blocks = np.zeros((BLOCKS, len(SUMS)))
    for block, cost_s in enumerate(costs_s):
        if cost_s:
            log = math.log(cost_s)
            blocks[block] = [4, 0, 4 * log, 4 * log * log, 4, 4 * cost_s, 0]
    for block, count in enumerate(failed):
        blocks[block, 1] += count
        blocks[block, 6] += count
    return Tried(choice=Choice(session=SessionSpec(threads=threads)), blocks=blocks)


def cell(*of: Tried, default: int | None = 0) -> Cell:
    return Cell(part="decode", key="rows=1 cores=4 clock=0.9", tried=of, default=default)


def model(*cells: Cell) -> ServedModel:
    return ServedModel(
        board="pi5",
        model="chat",
        model_hash="ab",
        ort_version="1",
        own_threads=4,
        own_graph="model.onnx",
        own_chunk=128,
        weight_bytes=1,
        tasks=1,
        cells=cells,
    )


def comparison(of: Cell, chosen: int = 1) -> Comparison:
    found = compare(of, chosen, ALL)
    assert found is not None
    return found


@given(st.integers(1, 200), st.integers(1, 20))
def test_folds_are_stretches_of_time_that_cover_it_once(blocks: int, folds: int) -> None:
    found = folds_of(blocks, folds)
    assert [block for fold in found for block in range(blocks)[fold]] == list(range(blocks))
    assert len(found) == min(blocks, folds)


def test_a_choice_that_takes_a_tenth_less_saves_a_tenth() -> None:
    of = cell(tried(4, [1.0] * BLOCKS), tried(2, [0.9] * BLOCKS))
    gain = gain_of(model(of), [comparison(of)], RULES, method="table", part="decode")
    assert gain.gain == pytest.approx(0.1)
    assert (gain.low, gain.high) == pytest.approx((0.1, 0.1))
    assert (gain.tasks, gain.all_tasks) == (8 * BLOCKS, 8 * BLOCKS)


def test_blocks_that_differ_make_a_wide_interval() -> None:
    even = cell(tried(4, [1.0] * BLOCKS), tried(2, [0.9] * BLOCKS))
    uneven = cell(tried(4, [1.0] * BLOCKS), tried(2, [0.6, 1.35] * (BLOCKS // 2)))
    narrow, wide = (
        gain_of(model(of), [comparison(of)], RULES, method="table", part="decode") for of in (even, uneven)
    )
    assert wide.low < wide.gain < wide.high
    assert wide.high - wide.low > 0.1 > narrow.high - narrow.low


def test_the_same_seed_gives_the_same_interval() -> None:
    of = cell(tried(4, [1.0] * BLOCKS), tried(2, [0.6, 1.35] * (BLOCKS // 2)))
    one, other = (gain_of(model(of), [comparison(of)], RULES, method="table", part="decode") for _ in range(2))
    assert one == other


def test_a_situation_counts_by_the_time_that_its_work_takes() -> None:
    long = cell(tried(4, [9.0] * BLOCKS), tried(2, [9.0 * 0.8] * BLOCKS))
    short = cell(tried(4, [1.0] * BLOCKS), tried(2, [1.0 * 1.2] * BLOCKS))
    both = [comparison(long), comparison(short)]
    gain = gain_of(model(long, short), both, RULES, method="table", part="decode")
    assert gain.gain == pytest.approx((9 * 0.2 - 1 * 0.2) / 10)


def test_keeping_the_default_neither_gains_nor_loses() -> None:
    of = cell(tried(4, [1.0, 3.0] * (BLOCKS // 2)), tried(2, [0.5] * BLOCKS))
    gain = gain_of(model(of), [comparison(of, 0)], RULES, method="table", part="decode")
    assert (gain.gain, gain.low, gain.high) == (0.0, 0.0, 0.0)
    assert gain.tasks < gain.all_tasks


def test_what_was_not_tried_in_that_time_is_not_compared() -> None:
    of = cell(tried(4, [1.0] * BLOCKS), tried(2, [0.9] * 10))
    assert compare(of, 1, slice(0, 10)) is not None
    assert compare(of, 1, slice(10, 20)) is None
    assert compare(cell(tried(4, [1.0]), default=None), 0, ALL) is None


def test_a_choice_that_completes_nothing_is_compared_and_loses_everything() -> None:
    of = cell(tried(4, [1.0] * BLOCKS), tried(2, [], failed=[1] * BLOCKS))
    gain = gain_of(model(of), [comparison(of)], RULES, method="table", part="decode")
    assert gain.gain == pytest.approx(-RULES.failure_price)
    _, losses = judged(model(of), "table", [comparison(of)], RULES)
    assert {loss.key for loss in losses} == {"", of.key}


def test_a_loss_within_the_tolerance_passes() -> None:
    of = cell(tried(4, [1.0] * BLOCKS), tried(2, [1.015] * BLOCKS))
    assert judged(model(of), "table", [comparison(of)], RULES)[1] == ()
    assert judged(model(of), "table", [comparison(of)], TrainingRules(tolerance=0.01))[1]


def test_a_single_situation_must_lose_beyond_chance() -> None:
    good = cell(tried(4, [9.0] * BLOCKS), tried(2, [8.0] * BLOCKS))
    noisy = Cell(
        part="decode",
        key="rows=2 cores=4 clock=0.9",
        tried=(tried(4, [1.0] * BLOCKS), tried(2, [0.5, 2.2] * (BLOCKS // 2))),
        default=0,
    )
    both = [comparison(good), comparison(noisy)]
    gains, losses = judged(model(good, noisy), "table", both, RULES)
    (lost,) = [gain for gain in gains if gain.key == noisy.key]
    assert lost.gain < -RULES.tolerance
    assert lost.high > 0
    assert losses == ()


@given(st.lists(st.floats(0.1, 10.0), min_size=BLOCKS, max_size=BLOCKS), st.floats(0.2, 3.0))
def test_an_interval_always_holds_its_gain(costs_s: list[float], factor: float) -> None:
    of = cell(tried(4, costs_s), tried(2, [factor * cost_s for cost_s in reversed(costs_s)]))
    gain = gain_of(model(of), [comparison(of)], RULES, method="table", part="decode")
    assert gain.low <= gain.gain <= gain.high < 1.0
    assert gain.gain == pytest.approx(1.0 - factor, abs=1e-6)
