"""Which texts an encoder computes together: shape buckets, padding and the size of a run. Pure.

The service cuts its batches by these rules and the engine its runs, so that a batch of the service is one run.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from magnitude.engine.protocol import Embed
from magnitude.errors import ContextLengthExceeded, RequestError

# Padded tokens a run at most, which is what everybody else waits for. The fixed cost of a run is that of 7.5 to 9
# tokens (MiniLM, two x86 cores), so runs of 512 would be 1.5 % cheaper, and 1,024 or 2,048 were not faster at all.
# Memory grows with a run: MiniLM leaves 28 MB behind after 512 tokens, 204 MB after 8,192.
MAX_RUN_TOKENS = 256
# Never fewer than this a run, however slow the board: below it the fixed cost would be more than a tenth.
LEAST_RUN_TOKENS = 64
# Lengths are padded to multiples of this. On this project's own English pages steps of 8 make 8 % of all positions
# padding, steps of 16 15 %, powers of two 28 %. Rows are never padded: rounding them up to powers of two would add
# another 10 %, and ONNX Runtime keeps nothing for a shape once its arena is off.
LENGTH_STEP = 8
# Texts of different lengths share a run while at most this share of it is padding between their buckets. With 16
# texts of those pages 0.1 takes 7.0 runs instead of 8.6 and, counting 7.5 tokens for a run, 1 % more time; 0.25
# takes 4.2 runs and 10 % more time.
MAX_PADDING = 0.1


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One run: which inputs, and the length to which they are padded."""

    indices: list[int]
    padded_tokens: int


def bucket_tokens(length: int, max_tokens: int, step: int = LENGTH_STEP) -> int:
    """The length to which a text of `length` tokens is padded."""
    return min(-(-length // step) * step, max_tokens)


def may_join(
    *, rows: int, filled: int, padded: int, length: int, max_tokens: int, max_run_tokens: int, max_padding: float
) -> int:
    """The padded length of a run once a text of `length` has joined it; 0 when it must not join.

    The run has `rows` texts, padded to `padded`, whose buckets alone would have `filled` tokens.
    """
    own = bucket_tokens(length, max_tokens)
    joined = max(padded, own)
    cells = (rows + 1) * joined
    if rows and (cells > max_run_tokens or cells - filled - own > max_padding * cells):
        return 0
    return joined


def by_length(lengths: Sequence[int]) -> list[int]:
    """The order in which inputs enter runs: indices, shortest text first."""
    return sorted(range(len(lengths)), key=lambda index: (lengths[index], index))


def next_run(
    lengths: Sequence[int],
    order: Sequence[int],
    start: int,
    *,
    max_tokens: int,
    max_run_tokens: int = MAX_RUN_TOKENS,
    max_padding: float = MAX_PADDING,
) -> RunPlan:
    """The run that begins with input `order[start]`: at most `max_run_tokens` padded tokens, or one input."""
    filled = padded = 0
    place = start
    while place < len(order):
        length = lengths[order[place]]
        joined = may_join(
            rows=place - start,
            filled=filled,
            padded=padded,
            length=length,
            max_tokens=max_tokens,
            max_run_tokens=max_run_tokens,
            max_padding=max_padding,
        )
        if not joined:
            break
        filled += bucket_tokens(length, max_tokens)
        padded = joined
        place += 1
    return RunPlan(indices=list(order[start:place]), padded_tokens=padded)


def plan_runs(
    lengths: Sequence[int],
    max_tokens: int,
    max_run_tokens: int = MAX_RUN_TOKENS,
    max_padding: float = MAX_PADDING,
) -> list[RunPlan]:
    """Group inputs of like length into runs."""
    order = by_length(lengths)
    plans: list[RunPlan] = []
    start = 0
    while start < len(order):
        plans.append(
            next_run(
                lengths,
                order,
                start,
                max_tokens=max_tokens,
                max_run_tokens=max_run_tokens,
                max_padding=max_padding,
            )
        )
        start += len(plans[-1].indices)
    return plans


def padding_share(lengths: Sequence[int], plans: Sequence[RunPlan]) -> float:
    """The share of all computed positions that are padding."""
    cells = sum(len(plan.indices) * plan.padded_tokens for plan in plans)
    return 1 - sum(lengths) / cells if cells else 0.0


def run_token_limit(token_s: float, max_run_s: float) -> int:
    """Padded tokens that take at most `max_run_s` when one takes `token_s` (0: not yet measured).

    A run is what a decode step of a running generation waits for. Until a token's time is known, runs are small.
    """
    if token_s <= 0:
        return LEAST_RUN_TOKENS
    return max(LEAST_RUN_TOKENS, min(MAX_RUN_TOKENS, int(max_run_s / token_s)))


def check_embed(request: Embed, max_tokens: int) -> None:
    """Raise `RequestError` for inputs that the encoder cannot take."""
    if request.token_types and [len(t) for t in request.token_types] != [len(i) for i in request.inputs]:
        raise RequestError("token_types must be as long as inputs", param="token_types")
    for index, ids in enumerate(request.inputs):
        check_ids(ids, max_tokens, f"input[{index}]")


def check_ids(ids: Sequence[int], max_tokens: int, where: str) -> None:
    """Raise `RequestError` naming `where` for token ids that the encoder cannot take."""
    if not ids:
        raise RequestError(f"{where} is empty", param=where, hint="Send at least one token")
    if len(ids) > max_tokens:
        raise ContextLengthExceeded(
            f"{where} has {len(ids)} tokens, the model takes {max_tokens}",
            param=where,
            hint="Shorten or split the text",
        )
    if min(ids) < 0:
        raise RequestError(f"{where} has a negative token id", param=where)
