"""Streams and prompts among them, as tables in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from bench.entering import TIMES_GOAL, EnteringResult
from bench.report import ratio_text
from bench.spread import Spread
from bench.streams import OF_BARE_GOAL, OF_LLAMA_GOAL, STREAMS, BatchRates


def batches_table(results: Sequence[BatchRates]) -> Table:
    table = Table(
        "streams", "service, tokens/s", "bare graph", "service/bare", "llama.cpp's server", "service/llama.cpp"
    )
    for row in results:
        table.add_row(
            str(row.streams),
            _rate(row.service) if row.service else row.missing,
            _rate(row.bare),
            ratio_text(row.of_bare) if row.of_bare else "",
            _rate(row.llama) if row.llama else "",
            ratio_text(row.of_llama) if row.of_llama else "",
        )
    return table


def goal_lines(results: Sequence[BatchRates], entering: Sequence[EnteringResult]) -> list[str]:
    """What is to be reached, and whether it was."""
    lines = []
    for row in results:
        if row.streams != STREAMS:
            continue
        for name, ratio, goal in (
            ("bare graph", row.of_bare, OF_BARE_GOAL),
            ("llama.cpp", row.of_llama, OF_LLAMA_GOAL),
        ):
            if ratio is not None:
                lines.append(
                    f"{STREAMS} streams beside {name}: {ratio.median:.2f}, goal {goal:g}: "
                    f"{_verdict(ratio.median >= goal)}"
                )
    for result in entering:
        lines.append(
            f"tokens while a prompt enters, at most {result.max_inter_token_ms:g} ms apart: p95 "
            f"{result.times.median:.1f} times the undisturbed one, goal {TIMES_GOAL:g}: "
            f"{_verdict(result.times.median <= TIMES_GOAL)}"
        )
    return lines


def entering_table(results: Sequence[EnteringResult]) -> Table:
    table = Table(
        "engine.max_inter_token_ms",
        "p95 between tokens, ms",
        "while the prompt enters",
        "times",
        "prefill alone, tokens/s",
        "beside the streams",
        "kept",
    )
    for row in results:
        table.add_row(
            f"{row.max_inter_token_ms:g}",
            f"{row.undisturbed_p95_ms.median:.1f}",
            f"{row.entering_p95_ms.median:.1f}",
            ratio_text(row.times),
            _rate(row.alone_rate),
            _rate(row.entering_rate),
            ratio_text(row.rate_kept),
        )
    return table


def _rate(rate: Spread) -> str:
    return f"{rate.median:.0f} ({rate.low:.0f}, {rate.high:.0f})"


def _verdict(reached: bool) -> str:
    return "met" if reached else "MISSED"
