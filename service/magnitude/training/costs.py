"""What a choice costs when failures are paid for, and whether it fails more often beyond chance. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from magnitude.training.cells import FAILED, FAILED_S, LOG, LOG_SQUARE, OK, OK_S, Floats

# One in a hundred: so rarely is a choice called worse that fails just as often.
FAILURE_Z = 2.33


class TrainingRules(msgspec.Struct, frozen=True, kw_only=True):
    """`tolerance` is the share of the time that may be lost anywhere. A failed task costs its time and
    `failure_price` times that of a complete one: somebody waited for nothing, asks again, and may give up. `folds`
    parts of the time are held back in turn. `seed`: intervals come out the same for the same records."""

    tolerance: float = 0.02
    failure_price: float = 10.0
    folds: int = 5
    seed: int = 1


def log_cost(sums: Floats, failure_price: float) -> Floats:
    """The logarithm of seconds for a unit of complete work, failed tasks included, along the last axis of `sums`:
    each complete one pays its share of the failed ones' time and price. NaN where none is complete."""
    ok = np.where(sums[..., OK] > 0, sums[..., OK], np.nan)
    lost = sums[..., FAILED_S] / np.where(sums[..., OK_S] > 0, sums[..., OK_S], np.nan)
    return np.asarray(sums[..., LOG] / ok + np.log1p(lost + failure_price * sums[..., FAILED] / ok))


def log_spread(sums: Floats) -> float:
    """Standard deviation of the logarithm of a complete unit's cost."""
    ok = float(sums[OK])
    if ok < 2:
        return 0.0
    mean = float(sums[LOG]) / ok
    return math.sqrt(max(0.0, float(sums[LOG_SQUARE]) / ok - mean * mean) * ok / (ok - 1))


def log_variance(sums: Floats, failure_price: float) -> float:
    """Variance of `log_cost`: of the mean of complete tasks, and of the number of failed ones (Poisson)."""
    ok, failed = float(sums[OK]), float(sums[FAILED])
    if ok < 2:
        return math.inf
    paid = 1.0 + failure_price * failed / ok
    return log_spread(sums) ** 2 / ok + (failure_price / paid) ** 2 * failed / ok**2


def failed_share(sums: Floats) -> float:
    tasks = float(sums[OK] + sums[FAILED])
    return float(sums[FAILED]) / tasks if tasks else 0.0


def failure_z(pairs: Iterable[tuple[Floats, Floats]]) -> float:
    """By how many standard deviations the first of each pair fails more often than the second, each pair a situation
    of its own (Cochran-Mantel-Haenszel, with Yates' correction of half a task). 0: not more often, or nothing to
    tell by."""
    excess = variance = 0.0
    for one, other in pairs:
        ours, theirs = float(one[OK] + one[FAILED]), float(other[OK] + other[FAILED])
        failed, tasks = float(one[FAILED] + other[FAILED]), ours + theirs
        if ours < 1 or theirs < 1 or tasks < 2:
            continue
        excess += float(one[FAILED]) - ours * failed / tasks
        variance += ours * theirs * failed * (tasks - failed) / (tasks**2 * (tasks - 1))
    if variance <= 0 or excess <= 0.5:
        return 0.0
    return (excess - 0.5) / math.sqrt(variance)


def failing_in_words(pairs: Sequence[tuple[Floats, Floats]]) -> str:
    """How often the first of each pair fails and how often the second, all pairs together."""
    ours, theirs = (np.sum([pair[side] for pair in pairs], axis=0) for side in (0, 1))
    tasks, others = (int(sums[OK] + sums[FAILED]) for sums in (ours, theirs))
    return f"{failed_share(ours):.1%} of {tasks} tasks failed, {failed_share(theirs):.1%} of {others} by default"
