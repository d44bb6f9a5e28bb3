"""Records of simulated boards: what tasks would have taken by the physics of `board/workload.py`, with noise and with
troubles planted in single choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from magnitude.board.profile import BoardProfile
from magnitude.board.profiles import load_profile
from magnitude.board.workload import ModelCost, Work, cores_used, load_of, placed
from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.strategy import Strategy
from magnitude.training.reading import SCHEMA

MODEL_HASH = "ab" * 32
SMALL = ModelCost(weight_bytes=120e6, macs_per_token=135e6)
START_S = 1.8e9
NOISE = 0.1
TIMEOUT_S = 60.0
DWELL_TASKS = 12

Trouble = Callable[[Strategy, int], tuple[float, float]]
"""Of a strategy and the number of a task: what its time is multiplied by, and how likely it times out."""


def untroubled(_strategy: Strategy, _number: int) -> tuple[float, float]:
    return 1.0, 0.0


def strategy(decode: int, prefill: int = 4, chunk: int = 128, variant: str = "") -> Strategy:
    return Strategy(
        prefill=SessionSpec(threads=prefill),
        decode=SessionSpec(threads=decode),
        prefill_chunk=chunk,
        max_batch=4,
        variant=variant,
    )


@cache
def step_s(board: str, threads: int, rows: int, clock_share: float) -> float:
    profile = load_profile(board)
    work = Work(phase="decode", threads=threads, rows=rows, model=SMALL)
    found = load_of(profile, cores_used(profile, placed(profile, threads), _khz(profile, clock_share)), work)
    assert found.inter_token_s is not None
    return found.inter_token_s


@cache
def token_s(board: str, threads: int, clock_share: float) -> float:
    profile = load_profile(board)
    work = Work(phase="prefill", threads=threads, model=SMALL)
    used = cores_used(profile, placed(profile, threads), _khz(profile, clock_share))
    return 1.0 / load_of(profile, used, work).prefill_tokens_s


def _khz(profile: BoardProfile, clock_share: float) -> list[float]:
    return [cluster.opps[-1].khz * clock_share for cluster in profile.clusters]


def rows_of(
    board: str,
    strategies: Sequence[Strategy],
    *,
    tasks: int = 3000,
    seed: int = 1,
    trouble: Trouble = untroubled,
    name: str = "",
    rows: Sequence[int] = (1, 2),
    clock_shares: Sequence[float] = (1.0,),
    own_threads: int = 4,
) -> list[dict[str, Any]]:
    """Tasks of one board. Strategies take turns of a dozen tasks, as a loop that tries them would have it."""
    random = np.random.default_rng(seed)
    cores = sum(len(cluster.cpus) for cluster in load_profile(board).clusters)
    settings = [msgspec.json.encode(used).decode() for used in strategies]
    prompts, answers = random.integers(20, 400, tasks).tolist(), random.integers(16, 128, tasks).tolist()
    togethers, clocks = random.choice(rows, tasks).tolist(), random.choice(clock_shares, tasks).tolist()
    noise, chance = np.exp(random.normal(0.0, NOISE, (tasks, 2))).tolist(), random.random(tasks).tolist()
    found = []
    for number in range(tasks):
        turn = number // DWELL_TASKS % len(strategies)
        used, together, clock_share = strategies[turn], togethers[number], clocks[number]
        prompt_tokens, new_tokens = prompts[number], answers[number]
        slower, fails = trouble(used, number)
        pieces = -(-prompt_tokens // used.prefill_chunk)
        # A piece costs a few milliseconds beside its tokens: the graph is started anew.
        prefill_s = prompt_tokens * token_s(board, used.prefill.threads, clock_share) + 0.004 * pieces
        decode_s = (new_tokens - 1) * step_s(board, used.decode.threads, together, clock_share)
        failed = chance[number] < fails
        found.append(
            {
                "board": name or board,
                "model": "chat",
                "model_hash": MODEL_HASH,
                "ort_version": "1.32.0",
                "weight_bytes": int(SMALL.weight_bytes),
                "wall_s": START_S + 10.0 * number,
                "kind": "generate",
                "outcome": "timed_out" if failed else "ok",
                "code": "deadline_exceeded" if failed else "",
                "prompt_tokens": prompt_tokens,
                "cached_tokens": 0,
                "new_tokens": new_tokens // 2 if failed else new_tokens,
                "prefill_s": prefill_s * noise[number][0] * slower,
                "decode_s": TIMEOUT_S if failed else decode_s * noise[number][1] * slower,
                "batch": float(together),
                "strategy": used.strategy_id,
                "settings": settings[turn],
                "own_threads": own_threads,
                "own_graph": "model.onnx",
                "own_chunk": 128,
                "rows": together,
                "tokens": prompt_tokens,
                "cores": cores,
                "clock_share": clock_share,
                "heat": "cool",
                "memory": "ample",
                "supply": "full",
            }
        )
    return found


def table_of(rows: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)
