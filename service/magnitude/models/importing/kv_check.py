"""Does an INT8 KV cache cost too much? The same graph with both caches, over text that did not set the scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from magnitude.models.golden import Agreement, agreement, log_softmax, merged

RowsOf = Callable[[list[int]], NDArray[np.float32]]

# A third of the least that 4-bit weights themselves cost (0.03 to 0.3 nats). SmolLM2-135M, on texts that did not set
# the scales: 0.0069.
KV_KL_NATS = 0.01
# Perplexity may rise by one part in a hundred; over a few hundred positions chance moves it by half of that
# (SmolLM2-135M: it fell from 11.68 to 11.62).
KV_PERPLEXITY_RISE = 0.01
# A wide bound for gross faults: top tokens also flip where two are equally good.
KV_TOP1 = 0.90


class KvCost(msgspec.Struct, frozen=True, kw_only=True):
    """A graph with an INT8 KV cache against the same one with a float cache."""

    agreement: Agreement
    float_perplexity: float
    int8_perplexity: float

    def within(self, kl_nats: float) -> bool:
        """Whether the INT8 cache may be used, with that much divergence allowed."""
        # Written so that figures which are no numbers are not within.
        return (
            self.agreement.kl_nats <= kl_nats
            and self.agreement.top1 >= KV_TOP1
            and self.int8_perplexity <= self.float_perplexity * (1 + KV_PERPLEXITY_RISE)
        )

    def told(self) -> str:
        """The figures in words, with what is allowed."""
        return (
            f"over {self.agreement.tokens} positions KL {self.agreement.kl_nats:.4f} nats (at most {KV_KL_NATS}), "
            f"top-1 {self.agreement.top1:.3f} (at least {KV_TOP1}), perplexity {self.float_perplexity:.2f} with a "
            f"float cache and {self.int8_perplexity:.2f} with INT8 (at most {KV_PERPLEXITY_RISE:.0%} more)"
        )


def halves(texts: Sequence[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Texts that set the scales and texts that judge them: every other one, so that both have all kinds."""
    return list(texts[0::2]), list(texts[1::2]) or list(texts)


def kv_cost(float_rows: RowsOf, int8_rows: RowsOf, texts: Sequence[list[int]]) -> KvCost:
    """Compares two graphs over `texts`; each function gives the logits of all positions of a text."""
    parts: list[Agreement] = []
    surprise = np.zeros(2)
    predicted = 0
    for ids in texts:
        rows = (float_rows(ids), int8_rows(ids))
        parts.append(agreement(*rows))
        surprise += [_surprise(some, ids) for some in rows]
        predicted += len(ids) - 1
    in_float, in_int8 = np.exp(surprise / max(1, predicted))
    return KvCost(agreement=merged(parts), float_perplexity=float(in_float), int8_perplexity=float(in_int8))


def _surprise(rows: NDArray[np.float32], ids: list[int]) -> float:
    """Negative log likelihood of a text after its first token, in nats."""
    following = np.asarray(ids[1:])
    return -float(log_softmax(rows[:-1])[np.arange(len(following)), following].sum(dtype=np.float64))
