"""The throughput knee: how many rows a batch should have."""

from __future__ import annotations

import math
from collections.abc import Mapping

# The knee is the smallest batch that gives this share of the best throughput. The last tenth is not worth having:
# step times scatter by some per cent on a busy board, so a smaller gain may be none, and every further row makes each
# stream slower (at equal throughput, twice the rows mean half the tokens per second for each).
WORTHWHILE = 0.9


def knee(step_s_by_rows: Mapping[int, float]) -> int:
    """Rows at the knee of rows / step time, from the time of a decode step by its number of rows.

    A step with more rows cannot really be faster, so measurements that say so are noise and are averaged first
    (isotonic regression, by pooling adjacent violators): one lucky step does not decide. Entries that cannot be
    measurements (no rows, a time that is not positive and finite) are left out; with nothing left it is 1, which
    needs no measurement to be right.
    """
    measured = sorted((n, s) for n, s in step_s_by_rows.items() if n >= 1 and s > 0 and math.isfinite(s))
    if not measured:
        return 1
    steps_s = _rising([step_s for _, step_s in measured])
    rates = {rows: rows / step_s for (rows, _), step_s in zip(measured, steps_s, strict=True)}
    enough = WORTHWHILE * max(rates.values()) * (1 - 1e-9)  # short of it by a rounding error is enough
    return min(rows for rows, rate in rates.items() if rate >= enough)


def _rising(values: list[float]) -> list[float]:
    """The closest sequence (least squares) that never falls."""
    levels: list[tuple[float, int]] = []  # mean of a block, values in it
    for value in values:
        mean, count = value, 1
        while levels and levels[-1][0] > mean:
            before, blocks = levels.pop()
            mean, count = (before * blocks + mean * count) / (blocks + count), blocks + count
        levels.append((mean, count))
    return [mean for mean, count in levels for _ in range(count)]
