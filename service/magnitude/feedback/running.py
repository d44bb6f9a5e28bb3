"""Mean, spread and quantiles of a series in constant memory."""

from __future__ import annotations

import math

# Weight of the newest sample: the mean's memory is about 1 / 0.05 = 20 tasks, so that a device that has warmed up
# forgets its cold start within twenty tasks.
SMOOTHING = 0.05
# Latencies fall into buckets that grow by 10 %: a P95 from them is at most 10 % off, in 230 counters from 1 ms
# to an hour.
BUCKET_GROWTH = 1.1
FIRST_BUCKET_S = 0.001


class RunningFigures:
    """Mean, spread and quantiles of a series in constant memory, recent samples weighing more."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._weights: dict[int, float] = {}
        self._unit = 1.0

    def add(self, value: float) -> None:
        self.count += 1
        weight = max(SMOOTHING, 1.0 / self.count)
        self.mean += weight * (value - self.mean)
        bucket = 0
        if value > FIRST_BUCKET_S:
            bucket = math.ceil(math.log(value / FIRST_BUCKET_S, BUCKET_GROWTH))
        # Growing the newcomer's weight instead of shrinking all the others costs one multiplication a sample.
        self._unit /= 1.0 - SMOOTHING
        self._weights[bucket] = self._weights.get(bucket, 0.0) + self._unit
        if self._unit > 1e100:
            self._weights = {key: kept / self._unit for key, kept in self._weights.items()}
            self._unit = 1.0

    def quantile(self, share: float) -> float:
        """Upper edge of the bucket that holds the quantile `share` (0..1); 0 without samples."""
        total = sum(self._weights.values())
        reached = 0.0
        edge_s = 0.0
        for bucket in sorted(self._weights):
            edge_s = FIRST_BUCKET_S * BUCKET_GROWTH**bucket
            reached += self._weights[bucket]
            if reached >= share * total:
                break
        return edge_s
