"""`magnitude bench`: how fast the running service answers, as a client sees it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer

from magnitude.cli.client import ServiceClient
from magnitude.cli.options import ConfigOption, JsonOption, KeyOption, ModelOption, UrlOption, reach_service

# Each round gets a prompt that differs from its first word on, so that no round is served from another's prefix.
SENTENCE = "Round {round}: the quick brown fox jumps over the lazy dog near the river bank. "
TOKENS_PER_SENTENCE = 18  # roughly, over the usual tokenizers; the service counts exactly and its count is shown


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the client saw it. `decode_s` runs from the first piece to the last. `cached_tokens` of the
    prompt were not computed: every round shares at least the beginning that the chat template writes."""

    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    ttft_s: float
    decode_s: float
    total_s: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the rounds. Prefill is what was computed of the prompt over the TTFT, so queueing and HTTP are
    part of it."""

    rounds: int
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    ttft_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    total_s: float


def register(app: typer.Typer) -> None:
    app.command("bench")(bench)


def bench(
    *,
    rounds: Annotated[int, typer.Option("--rounds", "-n", min=1, max=1000, help="Measured rounds.")] = 5,
    prompt_tokens: Annotated[int, typer.Option("--prompt", min=1, help="Prompt length in tokens, about.")] = 256,
    new_tokens: Annotated[int, typer.Option("--new", min=2, help="New tokens of each round.")] = 64,
    model: ModelOption = "default",
    config: ConfigOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure TTFT, prefill and decode on the running service, one request at a time.

    Medians over the rounds, after one that is not counted. Compare only figures of one machine and one setting.
    """
    with reach_service(config, url, api_key) as client:
        conditions = describe(client, model)
        measure(client, model, 0, prompt_tokens=prompt_tokens, new_tokens=new_tokens)  # warm-up
        results = []
        for number in range(1, rounds + 1):
            results.append(measure(client, model, number, prompt_tokens=prompt_tokens, new_tokens=new_tokens))
            if not as_json:
                last = results[-1]
                typer.echo(
                    f"round {number}: TTFT {last.ttft_s * 1000:.0f} ms, "
                    f"{last.new_tokens} tokens in {last.decode_s:.2f} s"
                )
    summary = summarise(results)
    if as_json:
        typer.echo(json.dumps({"conditions": conditions, "median": msgspec.to_builtins(summary)}, indent=2))
        return
    typer.echo("\n" + "\n".join(f"{name}: {value}" for name, value in conditions.items()))
    typer.echo(
        f"median of {summary.rounds} rounds, prompt {summary.prompt_tokens} tokens "
        f"({summary.cached_tokens} cached), {summary.new_tokens} new:\n"
        f"  TTFT     {summary.ttft_s * 1000:8.1f} ms\n"
        f"  prefill  {summary.prefill_tokens_per_s:8.1f} tokens/s\n"
        f"  decode   {summary.decode_tokens_per_s:8.1f} tokens/s\n"
        f"  whole    {summary.total_s:8.2f} s"
    )


def measure(
    client: ServiceClient,
    model: str,
    number: int,
    *,
    prompt_tokens: int,
    new_tokens: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Round:
    """One streamed request at temperature 0."""
    sentences = max(1, prompt_tokens // TOKENS_PER_SENTENCE)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": SENTENCE.format(round=number) * sentences + "Tell a long story."}],
        "max_tokens": new_tokens,
        "temperature": 0,
    }
    start_s = clock()
    first_s = last_s = start_s
    seen = False
    usage: dict[str, Any] = {}
    for delta in client.chat(body):
        if delta.text:
            last_s = clock()
            if not seen:
                first_s, seen = last_s, True
        usage = delta.usage or usage
    return Round(
        prompt_tokens=int(usage.get("prompt_tokens", 0)),
        cached_tokens=int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
        new_tokens=int(usage.get("completion_tokens", 0)),
        ttft_s=first_s - start_s,
        decode_s=last_s - first_s,
        total_s=clock() - start_s,
    )


def summarise(rounds: list[Round]) -> Summary:
    """Medians. The first token belongs to the prefill, so a round decodes one token less than it delivers."""

    import statistics

    def median(figure: Callable[[Round], float]) -> float:
        return statistics.median(figure(one) for one in rounds)

    return Summary(
        rounds=len(rounds),
        prompt_tokens=round(median(lambda one: one.prompt_tokens)),
        cached_tokens=round(median(lambda one: one.cached_tokens)),
        new_tokens=round(median(lambda one: one.new_tokens)),
        ttft_s=median(lambda one: one.ttft_s),
        prefill_tokens_per_s=median(
            lambda one: (one.prompt_tokens - one.cached_tokens) / one.ttft_s if one.ttft_s else 0.0
        ),
        decode_tokens_per_s=median(lambda one: (one.new_tokens - 1) / one.decode_s if one.decode_s else 0.0),
        total_s=median(lambda one: one.total_s),
    )


def describe(client: ServiceClient, model: str) -> dict[str, str]:
    """The conditions that a figure means nothing without."""
    import platform

    from magnitude.board import read_cpu

    version = client.get("/version")
    cpu = read_cpu()
    said = ", ".join(f"{name} {value}" for name, value in version.items()) if isinstance(version, dict) else version
    return {
        "service": f"{said} at {client.address}",
        "model": model,
        "client machine": f"{platform.machine()}, {len(cpu.affinity)} CPUs, {' '.join(cpu.features) or 'unknown'}",
        "load": f"{', '.join(f'{value:.2f}' for value in _load())} (1, 5, 15 min, before)",
    }


def _load() -> tuple[float, float, float]:
    import os

    return os.getloadavg()
