"""Speculation beside plain decode: two services over the same models, asked in turns.

Each prompt is sent to both, one right after the other, in alternating order. Decode runs from the first piece of the
answer to its end, on the client's side, so it holds everything: drafting, verification, sampling, messages and HTTP.
The engine's processor time is taken beside it: on a machine that does other things as well it is the steadier one.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterable

import httpx
import msgspec
import psutil
from prometheus_client.parser import text_string_to_metric_families

from bench.contender import PROJECT
from bench.service_process import ServiceFailed, ServiceProcess
from bench.spread import Spread, paired_ratio

# Answers that repeat their prompt, and answers that do not. Quoted are paragraphs of the project's own pages.
PAGES = ("operations", "models", "api", "configuration")
# A paragraph shorter than this is a heading or a remark.
LEAST_PARAGRAPH = 250
# Characters of a passage: about 400 tokens.
PASSAGE = 1600
QUOTING = (
    "Repeat the following text word by word.\n\n",
    "Summarise the following text, quoting its sentences where you can.\n\n",
)
FREE = (
    "Write a short story about a lighthouse keeper.",
    "Explain how a refrigerator works.",
    "Give me ideas for a birthday party.",
    "What are the causes of the first world war?",
    "Write a poem about autumn.",
    "How do I learn to swim?",
    "Describe the life of a honey bee.",
    "Write a letter to a friend about a journey.",
)
TEMPERATURES = (0.0, 0.3)  # the best token, and what requests get that name no temperature
# What speculation is to reach, as a multiple of plain decode.
GOALS = {"quotes": 1.3, "free text": 0.97}


class SpeculationResult(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of task at one temperature. Rates are tokens a second of single answers; `total_ratio` compares the
    time of all answers, `total_cpu_ratio` the engines' processor time. `same_texts`: answers that are equal with and
    without speculation (the seed is the same)."""

    task: str
    temperature: float
    goal: float
    answers: int
    tokens: int
    plain_rate: Spread
    drafting_rate: Spread
    ratio: Spread
    total_ratio: float
    total_cpu_ratio: float
    drafted_tokens: int
    accepted_tokens: int
    same_texts: int


class Answer(msgspec.Struct, frozen=True):
    """Tokens after the first piece, how long they took, and the engine's processor time meanwhile."""

    tokens: int
    decode_s: float
    cpu_s: float
    text: str

    @property
    def rate(self) -> float:
        return self.tokens / self.decode_s


def passages() -> list[str]:
    """One passage a page, of whole paragraphs of running text."""
    found = []
    for page in PAGES:
        paragraphs = (PROJECT / "docs" / f"{page}.md").read_text("utf-8").split("\n\n")
        running = [text for text in paragraphs if len(text) >= LEAST_PARAGRAPH and text[0].isalpha()]
        found.append("\n\n".join(running)[:PASSAGE])
    return found


def prompts(task: str) -> list[str]:
    if task == "free text":
        return list(FREE)
    return [order + passage for passage in passages() for order in QUOTING]


def measure_speculation(
    plain: ServiceProcess,
    drafting: ServiceProcess,
    rounds: int,
    max_tokens: int,
    progress: Callable[[str], None] = lambda _: None,
) -> list[SpeculationResult]:
    """`plain` decodes without speculation. Raises `ServiceFailed` when one of them does not answer."""
    for service in (plain, drafting):
        ask(service, FREE[0], 0.0, 0, 16)  # the first request pays for packing and paging in
    results = []
    for task, goal in GOALS.items():
        for temperature in TEMPERATURES:
            pairs: list[tuple[Answer, Answer]] = []
            drafted, accepted = drafts(drafting)
            for at in range(rounds):
                for number, prompt in enumerate(prompts(task)):
                    progress(f"{task}, temperature {temperature:g}, round {at + 1}: prompt {number + 1}")
                    order = (plain, drafting) if (at + number) % 2 else (drafting, plain)
                    given = {service.pid: ask(service, prompt, temperature, at, max_tokens) for service in order}
                    pairs.append((given[plain.pid], given[drafting.pid]))
            after = drafts(drafting)
            # An answer of two or three tokens has no rate to speak of.
            long = [(a, b) for a, b in pairs if min(a.tokens, b.tokens) >= 8]
            # Where the texts differ, so may their lengths: compare the time for as many tokens.
            shares = [a.tokens / b.tokens for a, b in long]
            drafting_s = sum(b.decode_s * share for (_, b), share in zip(long, shares, strict=True))
            drafting_cpu_s = sum(b.cpu_s * share for (_, b), share in zip(long, shares, strict=True))
            results.append(
                SpeculationResult(
                    task=f"{task} at {temperature:g}",
                    temperature=temperature,
                    goal=goal,
                    answers=len(pairs),
                    tokens=sum(a.tokens for a, _ in long),
                    plain_rate=Spread.of([a.rate for a, _ in long]),
                    drafting_rate=Spread.of([b.rate for _, b in long]),
                    ratio=paired_ratio([b.rate for _, b in long], [a.rate for a, _ in long]),
                    total_ratio=sum(a.decode_s for a, _ in long) / drafting_s,
                    total_cpu_ratio=sum(a.cpu_s for a, _ in long) / drafting_cpu_s,
                    drafted_tokens=after[0] - drafted,
                    accepted_tokens=after[1] - accepted,
                    same_texts=sum(a.text == b.text for a, b in pairs),
                )
            )
    return results


def ask(service: ServiceProcess, prompt: str, temperature: float, seed: int, max_tokens: int) -> Answer:
    """Stream one answer of the chat model. Raises `ServiceFailed`."""
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": prompt}],
        "temperature": temperature,
        "seed": seed,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    pid = service.engine_pid()
    if pid is None:
        raise ServiceFailed("the service has no engine")
    engine = psutil.Process(pid)
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=300)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise ServiceFailed(f"/v1/chat/completions answers {response.status}: {response.read()[:500]!r}")
        return read_answer(response, engine)
    finally:
        connection.close()


def read_answer(lines: Iterable[bytes], engine: psutil.Process) -> Answer:
    """The answer in a stream of server-sent events. Raises `ServiceFailed` when it came without its usage."""
    text, tokens, first_s, last_s, cpu_s = "", 0, 0.0, 0.0, 0.0
    for line in lines:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if chunk.get("usage"):
            tokens = int(chunk["usage"]["completion_tokens"])
        for choice in chunk.get("choices", []):
            piece = choice["delta"].get("content") or ""
            if piece or choice.get("finish_reason"):
                last_s = time.perf_counter()
                if not first_s:
                    first_s, cpu_s = last_s, _cpu_s(engine)
            text += piece
    if not tokens:
        raise ServiceFailed("an answer came without its usage")
    return Answer(tokens - 1, max(last_s - first_s, 1e-9), _cpu_s(engine) - cpu_s, text)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def drafts(service: ServiceProcess) -> tuple[int, int]:
    """Tokens drafted and accepted so far, from `/metrics`, which needs no key over the unix socket."""
    transport = httpx.HTTPTransport(uds=str(service.home / "run/magnitude.sock"))
    with httpx.Client(transport=transport, base_url="http://magnitude") as client:
        text = client.get("/metrics").raise_for_status().text
    totals = {"magnitude_drafted_tokens_total": 0.0, "magnitude_accepted_draft_tokens_total": 0.0}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in totals:
                totals[sample.name] += sample.value
    drafted, accepted = totals.values()
    return int(drafted), int(accepted)
