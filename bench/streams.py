"""Concurrent streams through the service, beside the bare graph and llama.cpp's server, and a long prompt among them.

All get the same token ids, decode greedily and are measured in turns. Speculation is off: it would add what the bare
graph does not do. A stream is counted while all of them decode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from bench.contender import Worker
from bench.service_process import ServiceFailed
from bench.spread import Spread, paired_ratio
from bench.stream_client import joint_rate, run_together

STREAMS = 4
NEW_TOKENS = 192
# Tokens that each stream must get while all decode, for the rate to count.
LEAST_TOKENS = 128
# Positions of a KV slot, the service's default; llama.cpp shares them among its slots.
CONTEXT = 8192
# Beginnings that the embedded model continues greedily beyond `NEW_TOKENS`.
PROMPTS = (
    "Once upon a time, in a small village by the sea, there lived an old clockmaker who",
    "The history of the lighthouse begins long before electricity. In the earliest days,",
    "Dear Anna, we have been travelling for three weeks now, and there is much to tell.",
    "The engine of a small car has many parts that work together. The most important of them",
    "In the forest behind our house live many animals. In spring,",
    "How a river changes a valley is a question of time. At first the water",
    "Once upon a time, on a small island in the north, there lived a young painter who",
    "The history of the railway begins long before steam. In the earliest days,",
)
OF_BARE_GOAL = 0.9
OF_LLAMA_GOAL = 1.0


class BatchRates(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens a second of `streams` streams together; `of_bare` and `of_llama` are the service's over theirs, paired
    by round. `missing`: why there is no figure of the service."""

    streams: int
    bare: Spread
    service: Spread | None = None
    of_bare: Spread | None = None
    llama: Spread | None = None
    of_llama: Spread | None = None
    missing: str = ""


def prompt_of(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def request(ids: list[int], max_tokens: int, **more: Any) -> dict[str, Any]:
    return {"model": "default", "prompt": ids, "max_tokens": max_tokens, "temperature": 0, **more}


def measure_batches(
    port: int,
    bare: Worker,
    llama_port: int | None,
    folder: Path,
    sizes: Sequence[int],
    rounds: int,
    progress: Callable[[str], None] = lambda _: None,
) -> list[BatchRates]:
    """`port` is the service's. llama.cpp runs `STREAMS` streams only. The first round warms up and is thrown away.

    A size that the service does not run together (its measured knee is lower) has no figure. Raises `ServiceFailed`
    and `ContenderFailed`."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = [prompt_of(tokenizer, text) for text in PROMPTS]
    rates: dict[tuple[str, int], list[float]] = {}
    missing: dict[int, str] = {}
    for at in range(-1, rounds):
        for size in sizes:
            progress("warming up" if at < 0 else f"round {at + 1} of {rounds}: {size} streams")
            used = prompts[:size]
            ways: dict[str, Callable[[], float]] = {"bare": partial(bare_rate, bare, used)}
            if size not in missing:
                ways["service"] = partial(stream_rate, port, used)
            if llama_port is not None and size == STREAMS:
                ways["llama"] = partial(stream_rate, llama_port, used, ignore_eos=True, cache_prompt=False)
            for way in sorted(ways, reverse=at % 2 == 0):
                try:
                    rate = ways[way]()
                except ServiceFailed as error:
                    if way != "service" or size == STREAMS:
                        raise
                    missing[size] = str(error)
                    continue
                if at >= 0:
                    rates.setdefault((way, size), []).append(rate)
    return [rates_of(size, rates, missing.get(size, "")) for size in sizes]


def rates_of(size: int, rates: dict[tuple[str, int], list[float]], missing: str) -> BatchRates:
    bare = rates["bare", size]
    if missing:
        return BatchRates(streams=size, bare=Spread.of(bare), missing=missing)
    service, llama = rates["service", size], rates.get(("llama", size))
    return BatchRates(
        streams=size,
        bare=Spread.of(bare),
        service=Spread.of(service),
        of_bare=paired_ratio(service, bare),
        llama=Spread.of(llama) if llama else None,
        of_llama=paired_ratio(service, llama) if llama else None,
    )


def bare_rate(bare: Worker, prompts: list[list[int]]) -> float:
    return len(prompts) * (NEW_TOKENS - 1) / bare.batch(prompts, NEW_TOKENS - 1).decode_s


def stream_rate(port: int, prompts: list[list[int]], **more: Any) -> float:
    answers = run_together(port, [request(ids, NEW_TOKENS, **more) for ids in prompts])
    return joint_rate(answers, LEAST_TOKENS)
