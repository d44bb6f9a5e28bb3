"""What a further session of a model costs: time and memory to make it, with and without the cache of packed weights,
and a step by another session than the one before."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.spread import Spread, paired_ratio
from magnitude.engine.comparing import same_results
from magnitude.engine.decoder import Decoder
from magnitude.engine.kv import KvMemory
from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.packed_weights import PackedWeights
from magnitude.engine.process import forget_mapped_pages, give_back_memory
from magnitude.engine.session_spec import SessionSpec
from magnitude.engine.sessions import open_session, prepare_runtime
from magnitude.engine.stats import read_memory
from magnitude.models.catalogue import open_folder
from magnitude.models.description import ModelDescription

PAST_TOKENS = 128
PREFILL_TOKENS = 128
# The least of so many runs stands for a round: what disturbs a run only ever makes it longer.
RUNS_A_ROUND = 3


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A session of the model. `own_bytes`: by how much this process has grown for it, files that it maps not
    counted. `equal`: whether it computes what the first one does, to the bit."""

    what: str
    threads: int
    load_s: float
    own_bytes: int
    equal: bool


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one kind: `ratio` is the time in turns with another session, to that of the same one each time."""

    run: str
    same_s: Spread
    ratio: Spread


class SessionCosts(msgspec.Struct, frozen=True, kw_only=True):
    made: list[Made]
    turns: list[Turns]
    cache_bytes: int


def measure_sessions(folder: Path, threads: int, rounds: int, cache: Path) -> SessionCosts:
    """The chat model in `folder`, in this process; `cache` is empty. Raises `ModelError` when it is no decoder."""
    prepare_runtime()
    model = open_folder(folder)
    assert model.decoder is not None
    sessions: list[Any] = []
    made: list[Made] = []

    def add(what: str, count: int, make: Callable[[SessionSpec], Any]) -> None:
        give_back_memory()
        before_bytes, started_s = read_memory().anon_bytes, time.monotonic()
        session = make(SessionSpec(threads=count))
        load_s = time.monotonic() - started_s
        give_back_memory()
        forget_mapped_pages(folder)
        own_bytes = read_memory().anon_bytes - before_bytes
        sessions.append(session)
        equal = same_results(model, sessions[0], session)
        made.append(Made(what=what, threads=count, load_s=load_s, own_bytes=own_bytes, equal=equal))

    path = folder / model.graph_file
    packed = PackedWeights(cache, same_results)
    add("the first one", threads, lambda spec: open_session(path, spec.threads))
    add("a further one", threads, lambda spec: open_session(path, spec.threads))
    add("a further one", max(1, threads // 2), lambda spec: open_session(path, spec.threads))
    add("a further one, which writes the cache", threads, lambda spec: packed.open(model, spec))
    add("a further one from the cache", threads, lambda spec: packed.open(model, spec))
    add("a further one from the cache", max(1, threads // 2), lambda spec: packed.open(model, spec))
    cache_bytes = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    further = {"with packed weights of its own": sessions[1], "from the cache": sessions[4]}
    turns = [turn for what, other in further.items() for turn in _turns(model, what, sessions[0], other, rounds)]
    return SessionCosts(made=made, turns=turns, cache_bytes=cache_bytes)


def _turns(model: ModelDescription, what: str, own: Any, other: Any, rounds: int) -> list[Turns]:
    """Both sessions have as many threads, so that what differs is the change alone."""
    assert model.decoder is not None
    layout = KvLayout.of(model.decoder, slots=1, max_len=PAST_TOKENS + PREFILL_TOKENS)
    fd = os.memfd_create("sessions")
    os.ftruncate(fd, layout.total_bytes)
    kv = KvMemory(fd, layout)
    os.close(fd)
    decoder = Decoder(model, own, kv)
    spec = SessionSpec(threads=1)  # a name for the other one
    decoder.add_session(spec, other)
    decoder.show(0, 0)
    decoder.show(1, 0)
    runs: dict[str, Callable[[SessionSpec | None], object]] = {
        "decode step": lambda by: decoder.step([17], [PAST_TOKENS], by=by),
        f"prefill of {PREFILL_TOKENS}": lambda by: decoder.extend(1, [17] * PREFILL_TOKENS, PAST_TOKENS, by=by),
    }
    try:
        found = []
        for name, run in runs.items():
            same: list[float] = []
            changing: list[float] = []
            for _ in range(rounds + 1):  # the first one binds and fetches, and is left out
                same.append(_least_s(run, (None,)))
                changing.append(_least_s(run, (None, spec)))
            ratio = paired_ratio(changing[1:], same[1:])
            found.append(Turns(run=f"{name}, {what}", same_s=Spread.of(same[1:]), ratio=ratio))
        return found
    finally:
        decoder.close()
        kv.close()


def _least_s(run: Callable[[SessionSpec | None], object], turns: tuple[SessionSpec | None, ...]) -> float:
    """Of the last of `turns`, each time after the others."""
    least_s = float("inf")
    for _ in range(RUNS_A_ROUND):
        for by in turns:
            started_s = time.perf_counter()
            run(by)
            run_s = time.perf_counter() - started_s
        least_s = min(least_s, run_s)
    return least_s
