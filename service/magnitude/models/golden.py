"""The golden set: does a graph still compute, here, what it computed when it was imported?

Quantised products depend on the CPU and on the kernel that ONNX Runtime picks for it; a kernel that is wrong for
one CPU gives fluent nonsense and no error. So a few real texts travel with each model: their ids, the logits (or
the vector) that the graph gave at import, on the machine that imported it. The service runs them once for each
(model hash, ONNX Runtime version, CPU features).

Comparing is pure; whoever calls brings the function that runs the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from magnitude.errors import ModelError
from magnitude.models.golden_texts import COSINE_TOLERANCE, GOLDEN_FILE, GOLDEN_VERSION, LOGIT_TOLERANCE
from magnitude.models.untrusted import CONFIG_MAX_BYTES, read_capped
from magnitude.persist import write_atomic

Floats = NDArray[np.float32]

# Logits kept a prompt: the best ones decide what is sampled; eight cover nearly all of the probability mass that
# temperature 0.3 (the default) can reach.
KEPT_LOGITS = 8

# A prompt is used only where its best token leads by this much at import, so that ordinary rounding cannot flip it.
# Two correct INT8 kernels, or a prefix computed in one piece and token by token, were measured up to 0.6 apart.
SURE_MARGIN = 1.5

# Rows that are compared at once, so that wide vocabularies stay in the cache and in memory.
_ROWS_AT_ONCE = 16


class GoldenPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """`ids` go in, the last row of the logits comes out: `top` are its best ids in order, `logits` their values."""

    ids: list[int]
    top: list[int]
    logits: list[float]


class GoldenVector(msgspec.Struct, frozen=True, kw_only=True):
    """`ids` go in, `vector` comes out (an embedding, or one score)."""

    ids: list[int]
    vector: list[float]


class Golden(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `golden.json`, as the machine that imported the model computed it."""

    version: int
    model_hash: str
    prompts: list[GoldenPrompt] = []
    vectors: list[GoldenVector] = []
    ort_version: str = ""


class GoldenResult(msgspec.Struct, frozen=True, kw_only=True):
    """`passed` says whether the model may serve. `reason` is empty then, else one line for people."""

    passed: bool
    prompts: int
    top1_agreement: float
    mean_logit_difference: float
    lowest_cosine: float
    reason: str = ""


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """A graph against a reference over `tokens` positions: share of equal top tokens, and mean KL in nats."""

    tokens: int
    top1: float
    kl_nats: float


def log_softmax(logits: NDArray[np.floating]) -> Floats:
    """Along the last axis, in float32 with a float64 sum: enough for a KL of 1e-6 nats, at a third of the time."""
    shifted: Floats = np.subtract(logits, logits.max(axis=-1, keepdims=True), dtype=np.float32)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float64)).astype(np.float32)
    return shifted


def agreement(reference: NDArray[np.floating], graph: NDArray[np.floating]) -> Agreement:
    """Compares two `[positions, vocabulary]` arrays of logits. KL is of the graph from the reference:
    sum of p_ref * (log p_ref - log p_graph). Logits that are not finite count as total disagreement."""
    if not np.isfinite(graph).all():
        return Agreement(tokens=len(graph), top1=0.0, kl_nats=float("inf"))
    kl_nats = 0.0
    for start in range(0, len(graph), _ROWS_AT_ONCE):
        expected = log_softmax(reference[start : start + _ROWS_AT_ONCE])
        got = log_softmax(graph[start : start + _ROWS_AT_ONCE])
        np.subtract(expected, got, out=got)
        kl_nats += float(np.vdot(np.exp(expected), got))
    top1 = reference.argmax(axis=-1) == graph.argmax(axis=-1)
    return Agreement(tokens=len(graph), top1=float(top1.mean()), kl_nats=max(0.0, kl_nats / len(graph)))


def merged(parts: list[Agreement]) -> Agreement:
    """Several texts as one, weighted by their positions."""
    tokens = sum(part.tokens for part in parts)
    return Agreement(
        tokens=tokens,
        top1=sum(part.top1 * part.tokens for part in parts) / tokens,
        kl_nats=sum(part.kl_nats * part.tokens for part in parts) / tokens,
    )


def golden_prompt(ids: list[int], last_row: NDArray[np.floating]) -> GoldenPrompt | None:
    """The prompt with its best logits, or None when its best token does not lead clearly enough."""
    top = np.argsort(last_row)[::-1][:KEPT_LOGITS]
    logits = [round(float(last_row[token]), 4) for token in top]
    if len(logits) < 2 or not np.isfinite(logits).all() or logits[0] - logits[1] < SURE_MARGIN:
        return None
    return GoldenPrompt(ids=ids, top=[int(token) for token in top], logits=logits)


def cosine(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    length = float(np.linalg.norm(a64) * np.linalg.norm(b64))
    return float(a64 @ b64) / length if length else 0.0


def check(run: Callable[[list[int]], NDArray[np.floating]], golden: Golden) -> GoldenResult:
    """Runs the set. `run` gives the last row of the logits of a prompt, or the vector of a text.

    Raises whatever `run` raises.
    """
    same, differences, cosines = 0, [], []
    for prompt in golden.prompts:
        row = np.asarray(run(prompt.ids), dtype=np.float64).reshape(-1)
        same += int(row.argmax()) == prompt.top[0]
        differences.append(float(np.abs(row[prompt.top] - np.asarray(prompt.logits)).mean()))
    for item in golden.vectors:
        expected = np.asarray(item.vector)
        got = np.asarray(run(item.ids), dtype=np.float64).reshape(-1)
        # A single score has no direction: compare it as a number, on the scale of a logit.
        cosines.append(
            cosine(expected, got) if len(expected) > 1 else float(abs(got[0] - expected[0]) < LOGIT_TOLERANCE)
        )
    count = len(golden.prompts)
    top1 = same / count if count else 1.0
    difference = float(np.mean(differences)) if differences else 0.0
    lowest = float(np.min(cosines)) if cosines else 1.0  # unlike `min`, it lets no NaN slip by
    return GoldenResult(
        passed=not (reason := _why_not(top1, same, count, difference, lowest)),
        prompts=count + len(golden.vectors),
        top1_agreement=top1,
        mean_logit_difference=difference,
        lowest_cosine=lowest,
        reason=reason,
    )


def _why_not(top1: float, same: int, count: int, difference: float, lowest: float) -> str:
    if top1 < 1.0:
        return f"{count - same} of {count} golden prompts have another first token than at import"
    if not difference <= LOGIT_TOLERANCE:
        return f"golden logits differ by {difference:.2f} on average, {LOGIT_TOLERANCE} is allowed"
    if not lowest >= COSINE_TOLERANCE:
        return f"a golden vector has cosine {lowest:.4f} to the one at import, {COSINE_TOLERANCE} is required"
    return ""


def write_golden(folder: Path, golden: Golden) -> None:
    write_atomic(folder / GOLDEN_FILE, msgspec.json.encode(golden) + b"\n")


def read_golden(folder: Path, model_hash: str) -> Golden | None:
    """The folder's golden set, or None where there is none. Raises `ModelError` for a damaged or foreign one."""
    path = folder / GOLDEN_FILE
    if not path.exists():
        return None
    again = "Import the model again"
    try:
        golden = msgspec.json.decode(read_capped(path, CONFIG_MAX_BYTES, what="golden set"), type=Golden)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: the golden set is damaged ({error})", hint=again, param=str(path)) from error
    if golden.version != GOLDEN_VERSION:
        raise ModelError(
            f"{path}: version {golden.version}, but this one reads {GOLDEN_VERSION}", hint=again, param=str(path)
        )
    if golden.model_hash != model_hash:
        raise ModelError(f"{path}: the golden set is of another model", hint=again, param=str(path))
    return golden
