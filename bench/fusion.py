"""What fusion plans cost: runs of each of a model's graphs over the same weights, in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import numpy as np

from bench.graph_runs import SLOTS, open_decoder, timed
from bench.spread import Spread, paired_ratio
from magnitude.engine.decoder import Decoder
from magnitude.engine.sessions import prepare_runtime
from magnitude.models.description import ModelDescription

PAST_TOKENS = 128
ROWS = (1, 2, SLOTS)
PIECES = (16, 128)
# The least of so many runs in a row stands for a round: what disturbs a run only ever makes it longer.
RUNS_A_ROUND = {"decode": 8, "prefill": 2}


class PlanCost(msgspec.Struct, frozen=True, kw_only=True):
    """Time of one shape of run through `graph_file`, against the model's own graph in the same round. `equal`: the
    logits are the same to the bit."""

    run: str
    threads: int
    graph_file: str
    ratio: Spread
    processor_ratio: Spread  # processor time of all threads, which other processes disturb less
    own_ms: float  # of the model's own graph, median of the rounds
    equal: bool


def plan_costs(
    model: ModelDescription, graphs: Sequence[str], *, threads: int, rounds: int, progress: Callable[[str], None]
) -> list[PlanCost]:
    """Decode steps and pieces of a prompt by each of `graphs`, against `model`'s own."""
    prepare_runtime()
    with ExitStack() as stack:
        decoders = {
            graph: stack.enter_context(open_decoder(msgspec.structs.replace(model, graph_file=graph), threads))
            for graph in dict.fromkeys((model.graph_file, *graphs))
        }
        for decoder in decoders.values():
            for row in range(SLOTS):
                decoder.show(row, row, "")
                decoder.extend(row, _ids(PAST_TOKENS), 0)
        costs = []
        for name, tokens, do in _runs():
            progress(f"{name} by {threads} threads")
            costs += _compare(name, tokens, do, model.graph_file, decoders, threads, rounds)
        return costs


def _ids(count: int) -> list[int]:
    # Any ids do: what is timed and compared is arithmetic, not text.
    return [(7919 * (position + 1)) % 1000 for position in range(count)]


def _runs() -> list[tuple[str, str, Callable[[Decoder], Any]]]:
    runs: list[tuple[str, str, Callable[[Decoder], Any]]] = []
    for rows in ROWS:
        ids, past = _ids(rows), [PAST_TOKENS] * rows
        runs.append(
            (
                f"decode, {rows} row{'s' if rows > 1 else ''}",
                "decode",
                lambda decoder, ids=ids, past=past: decoder.step(ids, past),  # type: ignore[misc]
            )
        )
    for tokens in PIECES:
        piece = _ids(tokens)
        runs.append(
            (
                f"prefill, {tokens} tokens",
                "prefill",
                lambda decoder, piece=piece: decoder.extend(0, piece, 0),  # type: ignore[misc]
            )
        )
    return runs


def _compare(
    name: str,
    phase: str,
    do: Callable[[Decoder], Any],
    own: str,
    decoders: dict[str, Decoder],
    threads: int,
    rounds: int,
) -> list[PlanCost]:
    wall_s: dict[str, list[float]] = {graph: [] for graph in decoders}
    cpu_s: dict[str, list[float]] = {graph: [] for graph in decoders}
    logits = {graph: np.array(do(decoder)) for graph, decoder in decoders.items()}
    for _ in range(rounds):
        for graph, decoder in decoders.items():
            times = [timed(lambda decoder=decoder: do(decoder)) for _ in range(RUNS_A_ROUND[phase])]  # type: ignore[misc]
            wall_s[graph].append(min(wall for wall, _ in times))
            cpu_s[graph].append(min(cpu for _, cpu in times))
    return [
        PlanCost(
            run=name,
            threads=threads,
            graph_file=graph,
            ratio=paired_ratio(wall_s[graph], wall_s[own]),
            processor_ratio=paired_ratio(cpu_s[graph], cpu_s[own]),
            own_ms=1000 * float(np.median(wall_s[own])),
            equal=bool(np.array_equal(logits[graph], logits[own])),
        )
        for graph in decoders
        if graph != own
    ]
