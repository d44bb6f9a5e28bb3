"""What a table or a tree would have gained on work that it was not made from. Pure.

Only what was really tried can be compared: a situation counts where the held-back time has tasks both of the choice
and of the default. Everything else is left out, and how much that is stands beside every gain.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from magnitude.policy.learned import Choice
from magnitude.policy.situation import Part
from magnitude.policy.trained import Gain, Loss, Method
from magnitude.training.cells import FAILED, LOG, OK, UNITS, Cell, Floats, ServedModel
from magnitude.training.choosing import Pick, pick, totals
from magnitude.training.costs import FAILURE_Z, TrainingRules, failing_in_words, failure_z, log_cost

# Tasks on either side of a comparison in the time that is held back.
LEAST_HELD = 3
# Drawings of blocks for an interval: its ends move by less than a tenth of its width from one seed to another.
DRAWS = 400
INTERVAL = (2.5, 97.5)


class Comparison(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A choice against the default in one cell over some blocks of time, by which it was not chosen."""

    cell: Cell
    chosen: int
    blocks: slice

    @property
    def sides(self) -> tuple[Floats, Floats]:
        """Sums of the choice, sums of the default."""
        assert self.cell.default is not None
        return self.cell.tried[self.chosen].total(self.blocks), self.cell.tried[self.cell.default].total(self.blocks)

    @property
    def tasks(self) -> int:
        ours, theirs = self.sides
        tasks = ours[[OK, FAILED]].sum()
        return int(tasks if self.chosen == self.cell.default else tasks + theirs[[OK, FAILED]].sum())

    @property
    def work_s(self) -> float:
        """How long all of the cell's complete work would take by default: what its gain counts for."""
        _, theirs = self.sides
        units = sum(tried.total(self.blocks)[UNITS] for tried in self.cell.tried)
        return float(units * math.exp(theirs[LOG] / theirs[OK]))


def compare(cell: Cell, chosen: int, blocks: slice) -> Comparison | None:
    """None: one of the two was not tried there."""
    if cell.default is None:
        return None
    comparison = Comparison(cell=cell, chosen=chosen, blocks=blocks)
    ours, theirs = comparison.sides
    enough = ours[OK] + ours[FAILED] >= LEAST_HELD and theirs[OK] >= LEAST_HELD
    return comparison if enough else None


def folds_of(blocks: int, folds: int) -> list[slice]:
    """Stretches of time, of equal numbers of blocks."""
    edges = [round(blocks * fold / folds) for fold in range(folds + 1)]
    return [slice(low, high) for low, high in itertools.pairwise(edges) if high > low]


class TableProof(msgspec.Struct, frozen=True, kw_only=True):
    """`confirmed`: choices by part and key that time which was held back could be compared for."""

    gains: tuple[Gain, ...]
    losses: tuple[Loss, ...]
    confirmed: frozenset[tuple[Part, str, Choice]]


def prove_table(model: ServedModel, rules: TrainingRules) -> TableProof:
    """Choose without each stretch of time in turn, and compare there."""
    found: list[Comparison] = []
    for held in folds_of(_blocks(model), rules.folds):
        picks: Mapping[int, Pick] = pick(model.cells, totals(model.cells, without=held), rules)
        for index, picked in picks.items():
            comparison = compare(model.cells[index], picked.chosen, held)
            if comparison is not None:
                found.append(comparison)
    gains, losses = judged(model, "table", found, rules)
    confirmed = frozenset((one.cell.part, one.cell.key, one.cell.tried[one.chosen].choice) for one in found)
    return TableProof(gains=gains, losses=losses, confirmed=confirmed)


def judged(
    model: ServedModel, method: Method, comparisons: Iterable[Comparison], rules: TrainingRules
) -> tuple[tuple[Gain, ...], tuple[Loss, ...]]:
    """Gains by part, then by situation where something other than the default was chosen; and where that loses.

    A part as a whole may not lose more than the tolerance. A single situation has fewer tasks: there it loses when it
    does so beyond chance. Neither may fail more often than the default beyond chance.
    """
    by_part: dict[Part, list[Comparison]] = defaultdict(list)
    by_key: dict[tuple[Part, str], list[Comparison]] = defaultdict(list)
    for one in comparisons:
        by_part[one.cell.part].append(one)
        by_key[one.cell.part, one.cell.key].append(one)
    gains: list[Gain] = []
    losses: list[Loss] = []
    groups = [(part, "", of) for part, of in sorted(by_part.items())]
    groups += [
        (part, key, of)
        for (part, key), of in sorted(by_key.items())
        if any(one.chosen != one.cell.default for one in of)
    ]
    for part, key, of in groups:
        gain = gain_of(model, of, rules, method=method, part=part, key=key)
        gains.append(gain)
        why = _why_lost(gain, of, rules)
        if why:
            losses.append(Loss(board=model.board, model=model.model, part=part, method=method, key=key, why=why))
    return tuple(gains), tuple(losses)


def gain_of(
    model: ServedModel,
    comparisons: Sequence[Comparison],
    rules: TrainingRules,
    *,
    method: Method,
    part: Part,
    key: str = "",
) -> Gain:
    """The share of time saved over all comparisons, each weighing what its work takes by default. Blocks are drawn
    once for all cells: they are the same moments of the board."""
    random = np.random.default_rng(rules.seed)
    drawn: dict[tuple[int, int], Floats] = {}
    saved_s = all_s = 0.0
    drawn_saved_s: Floats = np.zeros(DRAWS)
    for one in comparisons:
        work_s = one.work_s
        all_s += work_s
        if one.chosen == one.cell.default:
            continue
        saved_s += work_s * float(_saved(*one.sides, rules))
        blocks = range(_blocks(model))[one.blocks]
        if (blocks.start, blocks.stop) not in drawn:
            even = np.full(len(blocks), 1.0 / len(blocks))
            drawn[blocks.start, blocks.stop] = random.multinomial(len(blocks), even, size=DRAWS).astype(np.float64)
        counts = drawn[blocks.start, blocks.stop]
        assert one.cell.default is not None
        chosen, default = (
            counts @ one.cell.tried[side].blocks[one.blocks] for side in (one.chosen, one.cell.default)
        )
        # A drawing that leaves out all of the default's tasks says nothing.
        drawn_saved_s += work_s * np.nan_to_num(_saved(chosen, default, rules))
    point = saved_s / all_s if all_s else 0.0
    low, high = np.percentile(drawn_saved_s / all_s, INTERVAL) if all_s else (0.0, 0.0)
    return Gain(
        board=model.board,
        model=model.model,
        part=part,
        method=method,
        key=key,
        gain=point,
        low=float(min(low, point)),
        high=float(max(high, point)),
        tasks=sum(one.tasks for one in comparisons),
        all_tasks=sum(cell.tasks for cell in model.cells if cell.part == part and key in ("", cell.key)),
    )


def _saved(chosen: Floats, default: Floats, rules: TrainingRules) -> Floats:
    """The share of the default's time that is saved. What completes nothing loses the price of failing."""
    ratio = log_cost(chosen, rules.failure_price) - log_cost(default, rules.failure_price)
    nothing = (chosen[..., OK] < 1) & (chosen[..., FAILED] > 0)
    return np.asarray(np.where(nothing, -rules.failure_price, 1.0 - np.exp(ratio)))


def _why_lost(gain: Gain, comparisons: Sequence[Comparison], rules: TrainingRules) -> str:
    pairs = [one.sides for one in comparisons if one.chosen != one.cell.default]
    if failure_z(pairs) >= FAILURE_Z:
        return failing_in_words(pairs)
    beyond_chance = not gain.key or gain.high < 0
    if gain.gain < -rules.tolerance and beyond_chance:
        return f"loses {-gain.gain:.1%} of the time ({-gain.high:.1%} to {-gain.low:.1%})"
    return ""


def _blocks(model: ServedModel) -> int:
    return len(model.cells[0].tried[0].blocks) if model.cells else 0
