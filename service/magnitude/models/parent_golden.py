"""The parent's golden set in a variant's folder: what the parent says after a few real texts.

A kernel that is wrong for one CPU may be wrong for a variant's width alone. So a variant is compared with its parent
once more on the board that is to use it, with what the parent said at import: the texts after which its next token is
clear, with its best log probabilities. Comparing is pure; whoever calls brings the function that runs the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from magnitude.errors import ModelError
from magnitude.models.golden import GoldenVector, cosine, log_softmax
from magnitude.models.tolerance import Nearness
from magnitude.models.untrusted import CONFIG_MAX_BYTES, read_capped
from magnitude.persist import write_atomic

PARENT_GOLDEN_FILE = "parent.json"
PARENT_GOLDEN_VERSION = 1

# Log probabilities kept a prompt. Where the next token is clear, sixteen hold nearly all of the mass; what is left
# counts as one more token.
KEPT_LOGPROBS = 16
# A share of the mass below this is rounding of what was kept.
_LEAST_REST = 1e-6

# Log probabilities of the next token, by id: the best ones at least.
Logprobs = Mapping[int, float]


class ParentPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """`ids` go in; `top` are the parent's best next ids in order, `logprobs` theirs."""

    ids: list[int]
    top: list[int]
    logprobs: list[float]


class ParentGolden(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `parent.json`, as the machine that imported the variant computed it with the parent."""

    version: int
    parent_hash: str
    prompts: list[ParentPrompt] = []
    vectors: list[GoldenVector] = []


def parent_prompt(ids: list[int], last_row: NDArray[np.floating]) -> ParentPrompt:
    """The prompt with what the parent's last row of logits says of the next token."""
    logprobs = log_softmax(last_row)
    top = np.argsort(last_row)[::-1][:KEPT_LOGPROBS]
    return ParentPrompt(
        ids=ids, top=[int(token) for token in top], logprobs=[round(float(logprobs[token]), 5) for token in top]
    )


def compare_prompts(golden: ParentGolden, run: Callable[[list[int]], Logprobs]) -> Nearness:
    """Share of equal top tokens, and mean KL over the kept tokens and the rest together.

    Joining tokens never makes a KL larger, so that this is at most what the whole vocabulary would give. `run` gives
    the variant's log probabilities after a prompt; whatever is not among them counts as the least of them.
    Raises whatever `run` raises.
    """
    same, kl_nats = 0, 0.0
    for prompt in golden.prompts:
        found = run(prompt.ids)
        same += max(found, key=lambda token: found[token]) == prompt.top[0]
        least = min(found.values())
        kl_nats += _kl(prompt.logprobs, [found.get(token, least) for token in prompt.top])
    count = len(golden.prompts)
    return Nearness(top1_agreement=same / count, kl_nats=kl_nats / count) if count else Nearness()


def compare_vectors(golden: ParentGolden, run: Callable[[list[int]], NDArray[np.floating]]) -> Nearness:
    """What `run` makes of the golden texts beside what the parent made of them. Raises whatever `run` raises."""
    return vectors_beside((np.asarray(item.vector), np.asarray(run(item.ids)).reshape(-1)) for item in golden.vectors)


def vectors_beside(pairs: Iterable[tuple[NDArray[np.floating], NDArray[np.floating]]]) -> Nearness:
    """The lowest cosine of the parent's vectors and the variant's; for a single score one minus the difference, so
    that 1 means equal there too."""
    found = [
        cosine(expected, got) if len(expected) > 1 else 1.0 - float(abs(got[0] - expected[0]))
        for expected, got in pairs
    ]
    return Nearness(cosine=float(np.min(found)) if found else None)  # unlike `min`, it lets no NaN slip by


def _kl(parent: list[float], variant: list[float]) -> float:
    total = sum(math.exp(p) * (p - q) for p, q in zip(parent, variant, strict=True))
    rest, other = 1.0 - sum(map(math.exp, parent)), 1.0 - sum(map(math.exp, variant))
    if rest > _LEAST_REST:
        total += rest * math.log(rest / max(other, _LEAST_REST))
    return max(0.0, total) if math.isfinite(total) else math.inf


def write_parent_golden(folder: Path, golden: ParentGolden) -> None:
    write_atomic(folder / PARENT_GOLDEN_FILE, msgspec.json.encode(golden) + b"\n")


def read_parent_golden(folder: Path, parent_hash: str) -> ParentGolden:
    """The set in a variant's folder. Raises `ModelError` for a missing, damaged or foreign one."""
    path = folder / PARENT_GOLDEN_FILE
    again = "Import the variant again"
    data = read_capped(path, CONFIG_MAX_BYTES, what="golden set of the parent")
    try:
        golden = msgspec.json.decode(data, type=ParentGolden)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: it is damaged ({error})", hint=again, param=str(path)) from error
    if golden.version != PARENT_GOLDEN_VERSION:
        raise ModelError(
            f"{path}: version {golden.version}, but this one reads {PARENT_GOLDEN_VERSION}",
            hint=again,
            param=str(path),
        )
    if golden.parent_hash != parent_hash:
        raise ModelError(f"{path}: it was made with another import of the parent", hint=again, param=str(path))
    return golden
