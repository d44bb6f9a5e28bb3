"""The best choice for each situation, from what was tried there: few samples count little, failures are paid for, and
what fails more often than the default beyond chance is out. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from magnitude.policy.learned import Entry, Evidence, Rejected
from magnitude.policy.situation import Part
from magnitude.training.cells import FAILED, LOG, OK, Cell, Floats
from magnitude.training.costs import (
    FAILURE_Z,
    TrainingRules,
    failed_share,
    failing_in_words,
    failure_z,
    log_cost,
    log_spread,
    log_variance,
)

# Complete tasks of a choice in a situation, below which nothing is said of it there.
LEAST_TASKS = 8
# By how much the time of one choice differs from another's, as a logarithm: one thread against two differed by 0.03
# to 0.50 in eight measurements on a machine of two cores (free, shared, under a quota), 0.25 in the root mean square.
# What was seen is drawn towards "no difference" accordingly.
TYPICAL_LOG_RATIO = 0.25
# A choice replaces the default when chance alone would show it so much better once in a hundred times.
SURE_Z = 2.33

Sums = Sequence[Sequence[Floats]]  # by cell and by what was tried there


class Pick(msgspec.Struct, frozen=True, kw_only=True):
    """What is best in a cell: the index of it among what was tried. `log_ratio` to the default's cost after
    shrinkage."""

    chosen: int
    log_ratio: float
    rejected: Mapping[int, str]


def totals(cells: Sequence[Cell], without: slice | None = None) -> Sums:
    """Sums of everything that was tried, but for the blocks `without`."""
    found = []
    for cell in cells:
        of_cell = []
        for tried in cell.tried:
            sums = tried.total()
            of_cell.append(sums if without is None else sums - tried.total(without))
        found.append(of_cell)
    return found


def pick(cells: Sequence[Cell], sums: Sums, rules: TrainingRules) -> dict[int, Pick]:
    """The best choice by index of the cell, for all in which the default and something else were tried enough."""
    everywhere = _rejected_everywhere(cells, sums)
    found: dict[int, Pick] = {}
    for index, cell in enumerate(cells):
        if cell.default is None or sums[index][cell.default][OK] < LEAST_TASKS:
            continue
        enough = [
            other for other, of_other in enumerate(sums[index]) if of_other[OK] + of_other[FAILED] >= LEAST_TASKS
        ]
        if len(enough) > 1:
            found[index] = _pick(cell, sums[index], enough, rules, everywhere)
    return found


def entries(
    cells: Sequence[Cell], sums: Sums, picks: Mapping[int, Pick]
) -> tuple[tuple[Entry, ...], tuple[Rejected, ...]]:
    """Rows of the table as the device reads them."""
    rows, rejected = [], []
    for index, picked in sorted(picks.items()):
        cell = cells[index]
        rows.append(
            Entry(
                part=cell.part,
                key=cell.key,
                chosen=cell.tried[picked.chosen].choice,
                origin="trained",
                evidence=tuple(
                    Evidence(
                        choice=tried.choice,
                        cost_s=math.exp(float(of[LOG] / of[OK])),
                        log_spread=log_spread(of),
                        p95_s=tried.p95_s,
                        weight=float(of[OK]),
                        failed=failed_share(of),
                    )
                    for tried, of in zip(cell.tried, sums[index], strict=True)
                    if of[OK] >= 1
                ),
            )
        )
        rejected += [
            Rejected(part=cell.part, key=cell.key, choice=cell.tried[other].choice, reason=reason)
            for other, reason in sorted(picked.rejected.items())
        ]
    return tuple(rows), tuple(rejected)


def _pick(
    cell: Cell, sums: Sequence[Floats], enough: Sequence[int], rules: TrainingRules, everywhere: Mapping[object, str]
) -> Pick:
    assert cell.default is not None
    default = sums[cell.default]
    best, best_ratio = cell.default, 0.0
    rejected: dict[int, str] = {}
    for other in enough:
        if other == cell.default:
            continue
        reason = everywhere.get((cell.part, cell.tried[other].choice)) or _failing([(sums[other], default)])
        if reason:
            rejected[other] = reason
            continue
        ratio = float(log_cost(sums[other], rules.failure_price) - log_cost(default, rules.failure_price))
        variance = log_variance(sums[other], rules.failure_price) + log_variance(default, rules.failure_price)
        if not math.isfinite(ratio) or not math.isfinite(variance):
            continue
        kept = TYPICAL_LOG_RATIO**2 / (TYPICAL_LOG_RATIO**2 + variance)
        ratio, spread = ratio * kept, math.sqrt(variance * kept)
        if ratio < best_ratio and ratio + SURE_Z * spread < 0:
            best, best_ratio = other, ratio
    return Pick(chosen=best, log_ratio=best_ratio, rejected=rejected)


def _rejected_everywhere(cells: Sequence[Cell], sums: Sums) -> dict[object, str]:
    """Choices that fail more often than the default over all situations of a part together, and why: single
    situations often have too few tasks to tell."""
    pairs: dict[tuple[Part, object], list[tuple[Floats, Floats]]] = {}
    for cell, of_cell in zip(cells, sums, strict=True):
        if cell.default is None:
            continue
        for other, tried in enumerate(cell.tried):
            if other != cell.default:
                pairs.setdefault((cell.part, tried.choice), []).append((of_cell[other], of_cell[cell.default]))
    reasons = {key: _failing(of_choice) for key, of_choice in pairs.items()}
    return {key: reason for key, reason in reasons.items() if reason}


def _failing(pairs: list[tuple[Floats, Floats]]) -> str:
    """Why the first of them is not to be used; "": no reason."""
    return failing_in_words(pairs) if failure_z(pairs) >= FAILURE_Z else ""
