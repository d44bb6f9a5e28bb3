"""What a long prompt costs the streams that run while it enters, and what they cost it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from bench.contender import PROJECT
from bench.health import percentile
from bench.service_process import ServiceFailed, ServiceProcess
from bench.speculation import PAGES
from bench.spread import Spread, paired_ratio
from bench.stream_client import Stream
from bench.streams import PROMPTS, STREAMS, prompt_of, request
from magnitude.models.catalogue import open_folder

PROMPT_TOKENS = 2000
# With the prompt they are as many as the service runs together: one more might wait for a place.
RUNNING = STREAMS - 1
# Tokens of each stream before the prompt comes: what is undisturbed.
UNDISTURBED_TOKENS = 128
# More than a stream can get while the prompt enters; it is hung up on then.
STREAM_TOKENS = 6000
# Logit bias that keeps a stream from ending, in the OpenAI API's range.
NEVER = -100
TIMES_GOAL = 3.0
POLL_S = 0.02


class EnteringResult(msgspec.Struct, frozen=True, kw_only=True):
    """Times between tokens of `streams` streams, 95th percentiles, with and without a prompt that enters; the rate
    at which it enters, alone and beside them. Ratios are paired by round."""

    max_inter_token_ms: float
    streams: int
    prompt_tokens: int
    undisturbed_p95_ms: Spread
    entering_p95_ms: Spread
    times: Spread
    alone_rate: Spread
    entering_rate: Spread
    rate_kept: Spread


class EnteringRound(msgspec.Struct, frozen=True):
    undisturbed_p95_ms: float
    entering_p95_ms: float
    alone_rate: float
    entering_rate: float


def long_prompt(tokenizer: Tokenizer, number: int) -> list[int]:
    """Pages of the project behind a number of their own, so that no prefix is reused."""
    text = "\n\n".join((PROJECT / "docs" / f"{page}.md").read_text("utf-8") for page in PAGES)
    ids = prompt_of(tokenizer, f"{number} is the number of this reading.\n\n{text}")
    if len(ids) < PROMPT_TOKENS:
        raise ServiceFailed(f"the pages have only {len(ids)} tokens")
    return ids[:PROMPT_TOKENS]


def measure_entering(
    services: dict[float, ServiceProcess],
    folder: Path,
    rounds: int,
    progress: Callable[[str], None] = lambda _: None,
) -> list[EnteringResult]:
    """`services` by their `engine.max_inter_token_ms`, asked in turns. The first round warms up and is thrown away.
    Raises `ServiceFailed`."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    bias = {str(token): NEVER for token in open_folder(folder).special.eos}
    results: dict[float, list[EnteringRound]] = {limit_ms: [] for limit_ms in services}
    for at in range(-1, rounds):
        for number, (limit_ms, service) in enumerate(services.items()):
            progress("warming up" if at < 0 else f"round {at + 1} of {rounds}: at most {limit_ms:g} ms")
            first = 2 * (at + 1) * len(services) + 2 * number + 1000
            measured = one_round(service.port, tokenizer, bias, first)
            if at >= 0:
                results[limit_ms].append(measured)
    return [entering_result(limit_ms, measured) for limit_ms, measured in results.items()]


def one_round(port: int, tokenizer: Tokenizer, bias: dict[str, int], number: int) -> EnteringRound:
    def send_prompt(number: int) -> Stream:
        return Stream(port, request(long_prompt(tokenizer, number), 1, logit_bias=bias))

    alone = send_prompt(number).result()
    running = [
        Stream(port, request(prompt_of(tokenizer, text), STREAM_TOKENS, logit_bias=bias))
        for text in PROMPTS[:RUNNING]
    ]
    wait_for_reads(running, UNDISTURBED_TOKENS)
    prompt = send_prompt(number + 1).result()
    streams = [stream.abandon() for stream in running]
    begin_s = max(stream.first_s for stream in streams)
    undisturbed = [gap for stream in streams for gap in stream.gaps_ms(begin_s, prompt.sent_s)]
    entering = [gap for stream in streams for gap in stream.gaps_ms(prompt.sent_s, prompt.first_s)]
    if len(entering) < len(streams):
        raise ServiceFailed("the streams stood still while the prompt entered, or it waited for one of them to end")
    return EnteringRound(
        percentile(undisturbed, 0.95),
        percentile(entering, 0.95),
        PROMPT_TOKENS / (alone.first_s - alone.sent_s),
        PROMPT_TOKENS / (prompt.first_s - prompt.sent_s),
    )


def wait_for_reads(streams: Sequence[Stream], reads: int) -> None:
    """Until each stream got something so many times. Raises `ServiceFailed` when one ends before."""
    while any(stream.reads < reads for stream in streams):
        if any(stream.over for stream in streams):
            raise ServiceFailed("a stream that was to go on has ended")
        time.sleep(POLL_S)


def entering_result(limit_ms: float, rounds: Sequence[EnteringRound]) -> EnteringResult:
    undisturbed = [measured.undisturbed_p95_ms for measured in rounds]
    entering = [measured.entering_p95_ms for measured in rounds]
    alone = [measured.alone_rate for measured in rounds]
    beside = [measured.entering_rate for measured in rounds]
    return EnteringResult(
        max_inter_token_ms=limit_ms,
        streams=RUNNING,
        prompt_tokens=PROMPT_TOKENS,
        undisturbed_p95_ms=Spread.of(undisturbed),
        entering_p95_ms=Spread.of(entering),
        times=paired_ratio(entering, undisturbed),
        alone_rate=Spread.of(alone),
        entering_rate=Spread.of(beside),
        rate_kept=paired_ratio(beside, alone),
    )
