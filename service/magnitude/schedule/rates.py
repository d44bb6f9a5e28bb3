"""How fast requests have been lately: the measure for shortened answers and for `Retry-After`."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

# Weight of the newest sample; the mean remembers about fifty. From the field: decisions made over ten samples swing,
# over fifty they hold. A board that grew hot shows after some tens of turns.
NEWEST_WEIGHT = 0.04

# The least that a shortened answer gets: a short sentence, or a tool call's name and argument.
LEAST_NEW_TOKENS = 16

LEAST_RETRY_S = 1.0
# OpenAI's client libraries follow a Retry-After of up to a minute and fall back to their own, shorter, one beyond it.
LONGEST_RETRY_S = 60.0


class Mean:
    """An exponential moving mean; the first samples count equally, so that it is right from the start."""

    def __init__(self) -> None:
        self.count = 0
        self.value = 0.0

    def add(self, sample: float) -> None:
        if not math.isfinite(sample) or sample < 0:
            return
        self.count += 1
        self.value += max(NEWEST_WEIGHT, 1.0 / self.count) * (sample - self.value)


class Rates:
    """Measured times of the requests of one pool."""

    def __init__(self) -> None:
        self.run_s = Mean()  # a request's time in its compute slot
        self.prefill_token_s = Mean()
        self.decode_token_s = Mean()

    def add_tokens(self, *, prefill_tokens: int, prefill_s: float, new_tokens: int, decode_s: float) -> None:
        """Count the times of one request's tokens."""
        if prefill_tokens > 0 and prefill_s > 0:
            self.prefill_token_s.add(prefill_s / prefill_tokens)
        # The first token is the prefill's; a rate needs the steps after it.
        if new_tokens > 1 and decode_s > 0:
            self.decode_token_s.add(decode_s / (new_tokens - 1))

    def tokens_within(self, left_s: float, prompt_tokens: int) -> int | None:
        """New tokens that fit into `left_s`, prefill included; negative when not even that fits. None: nothing
        was measured yet."""
        if not self.decode_token_s.count or self.decode_token_s.value <= 0:
            return None
        return math.floor((left_s - prompt_tokens * self.prefill_token_s.value) / self.decode_token_s.value)

    def retry_after_s(self, position: int, slots: int, running_s: Iterable[float]) -> float:
        """When number `position` in line would start, from the ages of those that run: whoever comes back then
        finds the queue just served, and neither a full queue again nor an idle engine."""
        if not self.run_s.count:
            return LEAST_RETRY_S
        ends_s = [max(0.0, self.run_s.value - age_s) for age_s in running_s]
        ends_s += [0.0] * max(0, slots - len(ends_s))
        heapq.heapify(ends_s)
        start_s = 0.0
        for _ in range(position):
            start_s = heapq.heappop(ends_s) if ends_s else self.run_s.value
            if start_s >= LONGEST_RETRY_S:
                break
            heapq.heappush(ends_s, start_s + self.run_s.value)
        return min(LONGEST_RETRY_S, max(LEAST_RETRY_S, start_s))
