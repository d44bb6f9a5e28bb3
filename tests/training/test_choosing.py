"""The choice for a situation: the planted best is found, traps are not fallen into, and doubt keeps the default."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.learned import Choice
from magnitude.training.cells import SUMS, Cell, Tried
from magnitude.training.choosing import LEAST_TASKS, entries, pick, totals
from magnitude.training.costs import TrainingRules
from magnitude.training.work import BLOCKS

RULES = TrainingRules()
NOISE = 0.15


def tried(threads: int, tasks: int, cost_s: float, random: np.random.Generator, failing: float = 0.0) -> Tried:
    """Tasks over all blocks, of that cost with noise; each fails with that probability, after three times as long."""
    blocks = np.zeros((BLOCKS, len(SUMS)))
    for number in range(tasks):
        block = blocks[number % BLOCKS]
        if random.random() < failing:
            block += [0, 1, 0, 0, 0, 0, 3 * cost_s]
        else:
            log = np.log(cost_s) + random.normal(0.0, NOISE)
            block += [1, 0, log, log * log, 1, np.exp(log), 0]
    return Tried(choice=Choice(session=SessionSpec(threads=threads)), blocks=blocks)


def cell(*of: Tried, key: str = "rows=1", default: int | None = 0) -> Cell:
    return Cell(part="decode", key=key, tried=of, default=default)


def chosen(*cells: Cell) -> dict[int, int]:
    """By index of the cell, the number of threads."""
    found = {}
    for index, picked in pick(cells, totals(cells), RULES).items():
        session = cells[index].tried[picked.chosen].choice.session
        assert session is not None
        found[index] = session.threads
    return found


seeds = st.integers(0, 2**32 - 1)


@given(seed=seeds, costs_s=st.permutations([0.8, 0.95, 1.1]), scale=st.floats(1e-4, 100.0))
def test_the_planted_best_choice_is_found_at_any_scale(seed: int, costs_s: list[float], scale: float) -> None:
    random = np.random.default_rng(seed)
    of = [tried(4, 200, scale, random)]
    of += [tried(threads, 200, scale * cost_s, random) for threads, cost_s in zip((1, 2, 3), costs_s, strict=True)]
    assert chosen(cell(*of)) == {0: 1 + costs_s.index(0.8)}


@given(seed=seeds, cost_s=st.floats(0.3, 0.9))
def test_a_choice_of_which_five_in_a_hundred_time_out_is_never_taken(seed: int, cost_s: float) -> None:
    random = np.random.default_rng(seed)
    trap = tried(2, 600, cost_s, random, failing=0.05)
    of = cell(tried(4, 600, 1.0, random), trap)
    assert chosen(of) == {0: 4}
    (picked,) = pick([of], totals([of]), RULES).values()
    assert "tasks failed" in picked.rejected[1]
    _, rejected = entries([of], totals([of]), {0: picked})
    assert [one.choice for one in rejected] == [trap.choice]


@given(seed=seeds)
def test_failures_spread_over_many_situations_are_seen_together(seed: int) -> None:
    random = np.random.default_rng(seed)
    cells = [
        cell(tried(4, 60, 1.0, random), tried(2, 60, 0.5, random, failing=0.06), key=f"rows={rows}")
        for rows in range(1, 13)
    ]
    assert set(chosen(*cells).values()) == {4}


@given(seed=seeds, tasks=st.integers(LEAST_TASKS, 40))
def test_a_choice_that_costs_more_is_never_taken(seed: int, tasks: int) -> None:
    random = np.random.default_rng(seed)
    assert chosen(cell(tried(4, 400, 1.0, random), tried(2, tasks, 1.2, random))) == {0: 4}


def test_what_was_run_a_few_times_only_is_not_judged() -> None:
    random = np.random.default_rng(1)
    assert chosen(cell(tried(4, 200, 1.0, random), tried(2, LEAST_TASKS - 1, 0.5, random))) == {}
    assert chosen(cell(tried(4, LEAST_TASKS - 1, 1.0, random), tried(2, 200, 0.5, random))) == {}


def test_few_samples_are_drawn_towards_no_difference() -> None:
    random = np.random.default_rng(1)
    ratios = []
    for tasks in (10, 1000):
        of = cell(tried(4, 1000, 1.0, random), tried(2, tasks, 0.7, random))
        ratios.append(pick([of], totals([of]), RULES)[0].log_ratio)
    few, many = ratios
    assert np.log(0.7) * 1.05 < many < few < 0.0


def test_without_the_default_there_is_nothing_to_compare_with() -> None:
    random = np.random.default_rng(1)
    assert chosen(cell(tried(4, 99, 1.0, random), tried(2, 99, 0.5, random), default=None)) == {}


def test_time_that_is_held_back_is_not_seen() -> None:
    random = np.random.default_rng(1)
    of = cell(tried(4, 500, 1.0, random), tried(2, 500, 0.8, random))
    (sums,) = totals([of], without=slice(0, BLOCKS // 2))
    assert [one[0] for one in sums] == [250.0, 250.0]
