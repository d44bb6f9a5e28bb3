"""What a further session of a model costs: time and memory to make it, with and without the cache of packed weights,
and a step by another session than the one before."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.graph_runs import kv_file
from magnitude.engine.comparing import same_results
from magnitude.engine.decoder import Decoder
from magnitude.engine.kv import KvMemory
from magnitude.engine.packed_weights import PackedWeights
from magnitude.engine.process import forget_mapped_pages, give_back_memory
from magnitude.engine.session_spec import SessionSpec
from magnitude.engine.sessions import open_session, prepare_runtime
from magnitude.engine.stats import read_memory
from magnitude.models.catalogue import open_folder
from magnitude.models.description import ModelDescription

PAST_TOKENS = 128
PREFILL_TOKENS = 128
# Decode steps of a round; a piece of a prompt takes as long as twenty.
STEPS_A_ROUND = 10
# What disturbs a run only ever makes it longer, so this quantile of all runs says more than their median.
QUIET_SHARE = 0.1


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A session of the model. `own_bytes`: by how much this process has grown for it, files that it maps not
    counted. `equal`: whether it computes what the first one does, to the bit."""

    what: str
    threads: int
    load_s: float
    own_bytes: int
    equal: bool


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one kind by the model's own session, after a run of its own and after one of another session: the time
    that a tenth of them did not take."""

    run: str
    after_own_s: float
    after_other_s: float


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
    with kv_file(model) as (fd, layout):
        kv = KvMemory(fd, layout)
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
            times: dict[SessionSpec | None, list[float]] = {None: [], spec: []}
            for _ in range(rounds * (STEPS_A_ROUND if name == "decode step" else 1)):
                for before, seconds in times.items():
                    run(before)
                    started_s = time.perf_counter()
                    run(None)
                    seconds.append(time.perf_counter() - started_s)
            after_own_s, after_other_s = (_quiet_s(seconds) for seconds in times.values())
            found.append(Turns(run=f"{name}, {what}", after_own_s=after_own_s, after_other_s=after_other_s))
        return found
    finally:
        decoder.close()
        kv.close()


def _quiet_s(seconds: list[float]) -> float:
    return sorted(seconds)[int(QUIET_SHARE * len(seconds))]
