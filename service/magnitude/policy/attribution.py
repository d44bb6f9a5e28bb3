"""Whether the strategy loop pays: the same work with the loop off and on, in turn, and what the difference is. Pure.

Blocks of work follow each other as off, on, on, off, and in the next round the other way round: a board that warms up
or a neighbour that comes slows both alike. Requests are compared with themselves, so that what differs between
requests is no noise; rounds are resampled whole, because what lies near in time is alike. The bootstrap: Efron and
Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 8 and 13 (percentile intervals).
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

Mode = Literal["off", "on"]
Verdict = Literal["better", "worse", "no difference shown", "too few rounds"]

# A figure of which there is one value a round (what the whole work took) differs the same way in n rounds by chance
# alone with a probability of 2^(1-n), and the interval of such values always excludes 1: 25 % with three rounds, and
# 0.4 % with nine, which is about what is left to each of the seven figures.
LEAST_ROUNDS = 9
# Of all intervals together (Bonferroni): with 95 % for each of seven figures, one in four reports without any
# difference would tell of one.
CONFIDENCE = 0.95
# Some dozen of them then lie beyond either end of an interval.
RESAMPLES = 4000
BLOCKS_A_ROUND = 4


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """How one request of the work went. `index` is its place in the work, the same in each block. `ttft_s` and
    `inter_token_s` (on average) are None where nothing is streamed."""

    index: int
    total_s: float
    ttft_s: float | None = None
    inter_token_s: float | None = None
    failed: bool = False


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """The whole work, once. What is None was not measured. `switches` are those since the block before."""

    mode: Mode
    answers: tuple[Answer, ...]
    took_s: float
    energy_j: float | None = None
    peak_rss_bytes: int | None = None
    switches: int = 0


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio on/off, and where it lies: all intervals of a comparison are right together with `CONFIDENCE`."""

    low: float
    value: float
    high: float


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was measured. `off` and `on` are medians over all that was seen in that mode; `ratio` is below 1
    where the loop saves. None: nothing to compare."""

    name: str
    unit: str
    off: float
    on: float
    ratio: Interval | None
    verdict: Verdict


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    rounds: int
    figures: tuple[Figure, ...]
    failed_off: int
    failed_on: int
    switches_per_hour: float  # while the loop was on


def order(round_number: int) -> tuple[Mode, Mode, Mode, Mode]:
    """The modes of one round's blocks."""
    return ("off", "on", "on", "off") if round_number % 2 == 0 else ("on", "off", "off", "on")


def another_round_fits(rounds_took_s: Sequence[float], left_s: float) -> bool:
    """Whether a round is likely to be over by then: one as long as the longest so far."""
    return not rounds_took_s or max(rounds_took_s) <= left_s


def attribute(blocks: Sequence[Block], *, seed: int = 0, resamples: int = RESAMPLES) -> Attribution:
    """What whole rounds of `blocks` say, in the order in which they ran. The same blocks and seed give the same."""
    count = len(blocks) // BLOCKS_A_ROUND
    rounds = [blocks[number * BLOCKS_A_ROUND : (number + 1) * BLOCKS_A_ROUND] for number in range(count)]
    seen = [block for one in rounds for block in one]
    out = (1 - CONFIDENCE) / (len(_FIGURES) + 1) / 2
    figures = []
    for name, unit, values in _FIGURES:
        off = [value for block in seen if block.mode == "off" for value in values(block).values()]
        on = [value for block in seen if block.mode == "on" for value in values(block).values()]
        if off and on:
            effects = [effect for one in rounds if (effect := _effects(one, values))]
            chance = random.Random(seed)  # noqa: S311 - statistics, no secrets
            drawn = [statistics.median(_resample(effects, chance)) for _ in range(resamples if effects else 0)]
            figures.append(_figure(off, on, effects, drawn, name=name, unit=unit, out=out))
    tails = _tail(rounds, random.Random(seed), resamples, out)  # noqa: S311 - statistics, no secrets
    on_s = sum(block.took_s for block in seen if block.mode == "on")
    return Attribution(
        rounds=count,
        figures=(*figures, *tails),
        failed_off=_failed(seen, "off"),
        failed_on=_failed(seen, "on"),
        switches_per_hour=sum(block.switches for block in seen) * 3600 / on_s if on_s else 0.0,
    )


Values = Callable[[Block], dict[int, float]]


def _whole(block: Block) -> dict[int, float]:
    return {answer.index: answer.total_s for answer in block.answers if not answer.failed}


def _ttft(block: Block) -> dict[int, float]:
    return {
        answer.index: answer.ttft_s for answer in block.answers if answer.ttft_s is not None and not answer.failed
    }


def _inter_token(block: Block) -> dict[int, float]:
    return {
        answer.index: answer.inter_token_s
        for answer in block.answers
        if answer.inter_token_s is not None and not answer.failed
    }


def _took(block: Block) -> dict[int, float]:
    return {0: block.took_s}


def _energy(block: Block) -> dict[int, float]:
    return {0: block.energy_j} if block.energy_j is not None else {}


def _peak(block: Block) -> dict[int, float]:
    return {0: float(block.peak_rss_bytes)} if block.peak_rss_bytes is not None else {}


_FIGURES: tuple[tuple[str, str, Values], ...] = (
    ("first token", "s", _ttft),
    ("between tokens", "s", _inter_token),
    ("whole request", "s", _whole),
    ("whole work", "s", _took),
    ("energy of the work", "J", _energy),
    ("peak memory", "B", _peak),
)


def _effects(one: Sequence[Block], values: Values) -> list[float]:
    """By request the logarithm of on over off, over the four blocks of a round: what drifts evenly cancels."""
    by_mode: dict[Mode, list[dict[int, float]]] = {"off": [], "on": []}
    for block in one:
        by_mode[block.mode].append(values(block))
    common = set.intersection(*(set(block) for blocks in by_mode.values() for block in blocks))
    found = []
    for index in sorted(common):
        off, on = ([block[index] for block in by_mode[mode]] for mode in ("off", "on"))
        if min(*off, *on) > 0:
            found.append(statistics.fmean(map(math.log, on)) - statistics.fmean(map(math.log, off)))
    return found


def _figure(
    off: list[float],
    on: list[float],
    effects: list[list[float]],
    drawn: list[float],
    *,
    name: str,
    unit: str,
    out: float,
) -> Figure:
    ratio = None
    if effects:
        value = math.exp(statistics.median(effect for round_ in effects for effect in round_))
        ratio = _interval(value, list(map(math.exp, drawn)), out)
    return Figure(
        name=name,
        unit=unit,
        off=statistics.median(off),
        on=statistics.median(on),
        ratio=ratio,
        verdict=_verdict(ratio, len(effects)) if ratio is not None else "too few rounds",
    )


def _resample(rounds: list[list[float]], chance: random.Random) -> list[float]:
    """Rounds are drawn, and in each of them requests."""
    found: list[float] = []
    for round_ in chance.choices(rounds, k=len(rounds)):
        found += chance.choices(round_, k=len(round_))
    return found


def _tail(rounds: Sequence[Sequence[Block]], chance: random.Random, resamples: int, out: float) -> list[Figure]:
    """The 95th percentile of whole requests, which a median says nothing of."""
    by_round = [
        {mode: [v for block in one if block.mode == mode for v in _whole(block).values()] for mode in ("off", "on")}
        for one in rounds
    ]
    by_round = [one for one in by_round if one["off"] and one["on"]]
    if not by_round:
        return []

    def tail(drawn: Sequence[dict[str, list[float]]], mode: str) -> float:
        return _p95([value for one in drawn for value in one[mode]])

    off, on = tail(by_round, "off"), tail(by_round, "on")
    if off <= 0:
        return []
    samples = []
    for _ in range(resamples):
        drawn = chance.choices(by_round, k=len(by_round))
        samples.append(tail(drawn, "on") / tail(drawn, "off"))
    ratio = _interval(on / off, samples, out)
    verdict = _verdict(ratio, len(by_round))
    return [Figure(name="whole request, p95", unit="s", off=off, on=on, ratio=ratio, verdict=verdict)]


def _p95(values: list[float]) -> float:
    """The nearest rank: the smallest value that 95 % do not exceed."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def _interval(value: float, drawn: list[float], out: float) -> Interval:
    """`out` is the share of `drawn` beyond either end."""
    ordered = sorted(drawn)
    low = ordered[math.floor(out * (len(ordered) - 1))]
    high = ordered[math.ceil((1 - out) * (len(ordered) - 1))]
    return Interval(low=min(low, value), value=value, high=max(high, value))


def _verdict(ratio: Interval, rounds: int) -> Verdict:
    if rounds < LEAST_ROUNDS:
        return "too few rounds"
    if ratio.high < 1:
        return "better"
    return "worse" if ratio.low > 1 else "no difference shown"


def _failed(blocks: Sequence[Block], mode: Mode) -> int:
    return sum(answer.failed for block in blocks if block.mode == mode for answer in block.answers)
