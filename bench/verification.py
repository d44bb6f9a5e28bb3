"""What a verification run costs beside a plain step, and whether its logits are those of plain steps."""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from bench.compare import prompt_ids
from magnitude.engine.decoder import Decoder
from magnitude.engine.kv import KvMemory
from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.sampling import F32
from magnitude.engine.sessions import open_session
from magnitude.models.catalogue import open_folder

PROMPT_TOKENS = 256
PIECE = 128
# Greedy tokens behind the prompt, computed in runs of each size.
TOKENS = 72
POSITIONS = (2, 3, 4, 6, 8, 9)


class VerificationResult(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of `positions` positions of one generation. `run_steps`: a run's time in plain steps (median, paired).

    `equal_rows` of `rows` logit rows are equal to the bit to those of plain steps; the others differ by up to
    `largest_difference`, and `same_top` rows have the same best token.
    """

    positions: int
    step_ms: float
    run_ms: float
    run_steps: float
    rows: int
    equal_rows: int
    same_top: int
    largest_difference: float


def measure_verification(folder: Path, threads: int) -> list[VerificationResult]:
    """The chat model in `folder`, in this process. Raises `ModelError` when it is no decoder."""
    model = open_folder(folder)
    assert model.decoder is not None
    layout = KvLayout.of(model.decoder, slots=2, max_len=PROMPT_TOKENS + TOKENS)
    fd = os.memfd_create("verification")
    os.ftruncate(fd, layout.total_bytes)
    kv = KvMemory(fd, layout)
    os.close(fd)
    decoder = Decoder(model, open_session(folder / model.graph_file, threads), kv, max_batch=2)
    try:
        return _measure(decoder)
    finally:
        decoder.close()
        kv.close()


def _measure(decoder: Decoder) -> list[VerificationResult]:
    prompt = prompt_ids(PROMPT_TOKENS, 0)
    for row in (0, 1):
        decoder.show(row, row)
        for past in range(0, PROMPT_TOKENS, PIECE):
            last = decoder.extend(row, prompt[past : past + PIECE], past)[0]
    token = int(last.argmax())
    ids, plain = [], []
    for at in range(TOKENS):
        ids.append(token)
        plain.append(decoder.step([token], [PROMPT_TOKENS + at], 0)[0].copy())
        token = int(plain[-1].argmax())
    return [_runs(decoder, ids, plain, positions) for positions in POSITIONS]


def _runs(decoder: Decoder, ids: list[int], plain: list[F32], positions: int) -> VerificationResult:
    rows: list[F32] = []
    step_ms, run_ms = [], []
    for at in range(0, TOKENS, positions):
        past = PROMPT_TOKENS + at
        started = time.perf_counter()
        decoder.step(ids[at : at + 1], [past], 0)
        between = time.perf_counter()
        rows += [row.copy() for row in decoder.extend(1, ids[at : at + positions], past, "all")]
        ended = time.perf_counter()
        step_ms.append((between - started) * 1000)
        run_ms.append((ended - between) * 1000)
    differences = [float(np.abs(mine - other).max()) for mine, other in zip(rows, plain, strict=True)]
    return VerificationResult(
        positions=positions,
        step_ms=median(step_ms),
        run_ms=median(run_ms),
        run_steps=median([run / step for run, step in zip(run_ms, step_ms, strict=True)]),
        rows=len(rows),
        equal_rows=sum(difference == 0 for difference in differences),
        same_top=sum(int(mine.argmax()) == int(other.argmax()) for mine, other in zip(rows, plain, strict=True)),
        largest_difference=max(differences),
    )
