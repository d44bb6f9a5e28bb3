"""From logits to the next token.

The order is fixed: logit bias, penalties, grammar mask; then the best token at temperature 0, else temperature,
top-k, min-p, top-p and one draw. The draw comes from a counter-based generator (Philox, Salmon et al. 2011)
keyed by (seed, position), so a sampler rebuilt from the ids alone draws the same tokens.

Vocabularies have 50,000 to 150,000 entries and a step takes a few milliseconds, so nothing here sorts them all:
candidates are cut out by a threshold first and only those are sorted. The cuts are exact, not approximate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from magnitude.engine.protocol import SamplerSettings, TokenLogprob
from magnitude.errors import EngineError, RequestError

F32 = NDArray[np.float32]
Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]

_MASK64 = (1 << 64) - 1
# Multipliers and key increments of Philox 4x64, from the paper.
_PHILOX_M0, _PHILOX_M1 = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_PHILOX_W0, _PHILOX_W1 = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
# Below this temperature the draw is greedy in all but name; the bound keeps the division finite.
_MIN_TEMPERATURE = 1e-5
# Entries a block of the two-level cumulative sum. A flat one over 49,152 entries took 590 us, this 20 us.
_BLOCK = 256
# Distances below the best logit at which to look for enough candidates before partitioning everything.
_CUTS = (3.0, 8.0, 16.0)


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The drawn token; `logprob` where it was asked for."""

    token: int
    logprob: TokenLogprob | None = None


def check_settings(settings: SamplerSettings, vocab_size: int) -> None:
    """Raise `RequestError` for settings that no sampler can follow."""

    def refuse(param: str, rule: str) -> None:
        raise RequestError(f"{param} must be {rule}", param=param, hint=f"Send a value that is {rule}")

    if not (math.isfinite(settings.temperature) and settings.temperature >= 0):
        refuse("temperature", "a number of at least 0")
    if not 0 <= settings.top_p <= 1:
        refuse("top_p", "between 0 and 1")
    if not 0 <= settings.min_p <= 1:
        refuse("min_p", "between 0 and 1")
    if settings.top_k < 0:
        refuse("top_k", "at least 0")
    if not (math.isfinite(settings.repetition_penalty) and settings.repetition_penalty > 0):
        refuse("repetition_penalty", "a number above 0")
    for param in ("presence_penalty", "frequency_penalty"):
        if not math.isfinite(getattr(settings, param)):
            refuse(param, "a finite number")
    for token, bias in settings.logit_bias.items():
        if not 0 <= token < vocab_size:
            refuse("logit_bias", f"about token ids from 0 to {vocab_size - 1}")
        if not math.isfinite(bias):
            refuse("logit_bias", "a finite number for each token")


class Sampler:
    """Draws one generation's tokens: `choose`, then `accept` the token that was taken.

    State is what `prompt` and `emitted` imply and nothing else.
    """

    def __init__(
        self,
        settings: SamplerSettings,
        *,
        vocab_size: int,
        prompt: Iterable[int],
        emitted: Iterable[int] = (),
        logprobs: int | None = None,
    ) -> None:
        check_settings(settings, vocab_size)
        self._settings = settings
        self._vocab_size = vocab_size
        self._logprobs = logprobs
        self._position = 0
        self._bias_ids = np.fromiter(settings.logit_bias.keys(), np.int64)
        self._bias_values = np.fromiter(settings.logit_bias.values(), np.float32)
        penalises_emitted = settings.presence_penalty != 0 or settings.frequency_penalty != 0
        self._history = (
            _History(prompt if settings.repetition_penalty != 1 else ())
            if penalises_emitted or settings.repetition_penalty != 1
            else None
        )
        self._untouched = self._history is None and not settings.logit_bias
        self._work: F32 | None = None
        for token in emitted:
            self.accept(token)

    def accept(self, token: int) -> None:
        """The token at this position is `token`; the next choice is about the next position."""
        self._position += 1
        if self._history is not None:
            self._history.add(token)

    def choose(self, logits: F32, allowed: Mask | None = None) -> Choice:
        """The token for this position. `logits` is `[vocab_size]` and is not changed.

        `allowed` is what the grammar lets pass (None: everything). Raises `EngineError` `bad_logits` when the
        logits hold NaN or plus infinity or nothing finite (minus infinity means "never" and is accepted), and
        `nothing_allowed` when the mask leaves no token.
        """
        best = int(logits.argmax())  # NaN counts as the largest, so this one look finds every bad value
        if not math.isfinite(logits[best]):
            raise EngineError(
                "the model computed logits that are not numbers",
                code="bad_logits",
                hint="Import the model again; if it stays so, use another precision",
            )
        if self._untouched and allowed is None:
            scores = logits
        else:
            scores = self._adjusted(logits, allowed)
            best = int(scores.argmax())
            if scores[best] == -np.inf:
                raise EngineError("the grammar and the bias leave no token", code="nothing_allowed")
        settings = self._settings
        token = best
        if settings.temperature > 0:
            token = _draw(scores, best, settings, uniform(settings.seed, self._position))
        if self._logprobs is None:
            return Choice(token=token)
        return Choice(token=token, logprob=_logprob(scores, best, token, self._logprobs))

    def _adjusted(self, logits: F32, allowed: Mask | None) -> F32:
        if self._work is None:
            self._work = np.empty(self._vocab_size, np.float32)
        work = self._work
        np.copyto(work, logits)
        if len(self._bias_ids):
            work[self._bias_ids] += self._bias_values
        if self._history is not None:
            self._history.penalise(work, self._settings)
        if allowed is not None:
            forbid(work, allowed)
        return work


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on `seed` and `position` (unsigned, 64 bit) alone.

    The first output of Philox 4x64 with ten rounds (Salmon et al. 2011, "Parallel random numbers: as easy as
    1, 2, 3") under the key (seed, position); equal to `numpy.random.Philox(key=[seed, position])`, whose
    construction takes 15 us against 5 us here.
    """
    c0, c1, c2, c3 = 1, 0, 0, 0  # NumPy counts up before its first output
    k0, k1 = seed & _MASK64, position & _MASK64
    for _ in range(10):
        product0 = _PHILOX_M0 * c0
        product1 = _PHILOX_M1 * c2
        c0, c1, c2, c3 = (
            (product1 >> 64) ^ c1 ^ k0,
            product1 & _MASK64,
            (product0 >> 64) ^ c3 ^ k1,
            product0 & _MASK64,
        )
        k0 = (k0 + _PHILOX_W0) & _MASK64
        k1 = (k1 + _PHILOX_W1) & _MASK64
    return float(c0 >> 11) / (1 << 53)


def forbid(scores: F32, allowed: Mask) -> None:
    """Set `scores` to minus infinity where `allowed` is false, in place.

    Plain masked assignment branches at every entry (215 us for 49,152); the minimum with plus or minus infinity
    does not (about 40 us).
    """
    ceiling = allowed.astype(np.float32)
    ceiling -= 0.5
    ceiling *= np.float32(np.inf)
    np.minimum(scores, ceiling, out=scores)


class _History:
    """Distinct ids so far and how often each was emitted (0: in the prompt only)."""

    def __init__(self, prompt: Iterable[int]) -> None:
        self._place: dict[int, int] = {}
        self._ids: Ids = np.empty(64, np.int64)
        self._counts: F32 = np.zeros(64, np.float32)
        for token in prompt:
            self._place_of(token)

    def _place_of(self, token: int) -> int:
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        return place

    def add(self, token: int) -> None:
        place = self._place_of(token)  # first: it may replace the arrays
        self._counts[place] += 1

    def penalise(self, scores: F32, settings: SamplerSettings) -> None:
        """Repetition penalty as in CTRL (Keskar et al. 2019) over prompt and output; presence and frequency
        penalties as in the OpenAI API, over the output."""
        ids, counts = self._ids[: len(self._place)], self._counts[: len(self._place)]
        values = scores[ids]
        penalty = np.float32(settings.repetition_penalty)
        if penalty != 1:
            values = np.where(values > 0, values / penalty, values * penalty)
        if settings.presence_penalty or settings.frequency_penalty:
            values = values - np.float32(settings.frequency_penalty) * counts
            values -= np.float32(settings.presence_penalty) * (counts > 0)
        scores[ids] = values


def best_ids(scores: F32, best: int, count: int) -> Ids:
    """The `count` ids with the highest finite scores, best first; equal scores in the order of their ids.

    Fewer when fewer are above minus infinity. `best` is the index of the maximum.
    """
    if count == 1:
        return np.array([best], np.int64)
    for cut in _CUTS:
        found = np.flatnonzero(scores >= scores[best] - np.float32(cut))
        if len(found) >= count:
            break
    else:
        found = np.flatnonzero(scores > -np.inf)
    if len(found) > 4 * count:  # sorting a few more is cheaper than partitioning them
        values = scores[found]
        found = found[values >= np.partition(values, len(found) - count)[len(found) - count]]
    order = np.argsort(-scores[found], kind="stable")
    return found[order[:count]]


def _draw(scores: F32, best: int, settings: SamplerSettings, chance: float) -> int:
    """One id by temperature, top-k, min-p, top-p. `chance` is uniform in [0, 1)."""
    ids: Ids | None = None  # None: the whole vocabulary
    in_order = 0 < settings.top_k < len(scores)
    if in_order:
        ids = best_ids(scores, best, settings.top_k)
    weights = (scores if ids is None else scores[ids]) - scores[best]
    weights /= np.float32(max(settings.temperature, _MIN_TEMPERATURE))
    if settings.min_p > 0:
        # p >= min_p * p_best, in logarithms.
        kept = np.flatnonzero(weights >= np.float32(math.log(settings.min_p)))
        ids = kept if ids is None else ids[kept]
        weights = weights[kept]
    np.exp(weights, out=weights)
    if settings.top_p < 1:
        wanted = settings.top_p * float(weights.sum(dtype=np.float64))
        if not in_order:
            order = _heaviest(weights, wanted)
            ids = order if ids is None else ids[order]
            weights = weights[order]
        running = np.cumsum(weights, dtype=np.float64)
        count = int(np.searchsorted(running, wanted, side="left")) + 1
        weights = weights[:count]
    index = _pick(weights, chance)
    return index if ids is None else int(ids[index])


def _heaviest(weights: F32, wanted: float) -> Ids:
    """Indices of the heaviest entries, heaviest first: enough of them to add up to `wanted`.

    The heaviest weight is 1. Entries above a cut that together reach the sum contain the set that is looked
    for, so only those are sorted.
    """
    for cut in (0.05, 1e-2, 1e-3, 1e-5):
        found = np.flatnonzero(weights >= np.float32(cut))
        if float(weights[found].sum(dtype=np.float64)) >= wanted:
            break
    else:
        found = np.flatnonzero(weights > 0)
    return found[np.argsort(-weights[found], kind="stable")]


def _pick(weights: F32, chance: float) -> int:
    """The index at which the running sum of `weights` first exceeds `chance` of the whole."""
    start = 0
    if len(weights) > 4 * _BLOCK:
        whole = len(weights) // _BLOCK * _BLOCK
        blocks = weights[:whole].reshape(-1, _BLOCK).sum(axis=1, dtype=np.float64)
        sums = np.append(blocks, weights[whole:].sum(dtype=np.float64))
        running = np.cumsum(sums)
        target = chance * running[-1]
        block = int(np.searchsorted(running, target, side="right"))
        if block == len(sums):  # rounding at the very end
            block = int(np.flatnonzero(sums)[-1])
        target -= running[block - 1] if block else 0.0
        start = block * _BLOCK
        weights = weights[start : start + _BLOCK] if start < whole else weights[whole:]
        running = np.cumsum(weights, dtype=np.float64)
    else:
        running = np.cumsum(weights, dtype=np.float64)
        target = chance * running[-1]
    index = int(np.searchsorted(running, target, side="right"))
    if index == len(weights):
        index = int(np.flatnonzero(weights)[-1])
    return start + index


def _logprob(scores: F32, best: int, token: int, count: int) -> TokenLogprob:
    """Log-softmax of the adjusted scores at temperature 1, for the token and the `count` best."""
    top = float(scores[best])
    total = top + math.log(float(np.exp(scores - scores[best]).sum(dtype=np.float64)))
    chosen = float(scores[token]) - total
    if count <= 0:
        return TokenLogprob(logprob=chosen)
    ids = best_ids(scores, best, min(count, len(scores)))
    return TokenLogprob(logprob=chosen, top=[(int(i), float(scores[i]) - total) for i in ids])
