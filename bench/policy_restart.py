"""A restart with what was learned and without it: what is in force first, and how long the first requests take.

The service is started with one thread, so that there is something to be learned on any machine with two cores.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.policy_figures import Interval, bootstrap
from bench.policy_load import COMMON
from bench.policy_work import Kind, Phase, Work
from bench.service_process import ServiceFailed, ServiceProcess, running_service
from bench.strategy_client import StrategyClient
from magnitude.policy.strategy import Strategy

SETTINGS: dict[str, dict[str, Any]] = {**COMMON, "engine": {**COMMON["engine"], "threads": 1}}
# To have something to restart with, the service that learns does so quickly; those that are compared are as shipped.
LEARNING: dict[str, dict[str, Any]] = {
    **SETTINGS,
    "engine": {**SETTINGS["engine"], "optimization_window": 20},
    "policy": {"cold_start_s": 2.0},
}
# One block: answers and prompts in turn, a rest in which the loop may probe.
LEARNING_REST_S = 3.0
LEAST_THREADS = 2


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One start. `first`: what was in force when the service was ready and its sessions were there, `after_s` seconds
    later; `request_s` the first requests."""

    with_dump: bool
    first: str
    after_s: float
    request_s: tuple[float, ...]


class RestartResult(msgspec.Struct, frozen=True, kw_only=True):
    """`dumped` is what was in force when the service that had learned was stopped. `ratio`: time of a request with
    the dump by that without it, with its interval over the requests of all rounds."""

    dumped: str
    learned_s: float
    starts: tuple[Start, ...]
    equal: bool
    ratio: Interval

    @property
    def missed(self) -> list[str]:
        if self.equal:
            return []
        first = {start.first for start in self.starts if start.with_dump}
        return [f"after a restart {', '.join(sorted(first))} is in force, dumped was {self.dumped}"]


def measure_restart(
    models: Path,
    *,
    rounds: int,
    requests: int,
    learn_s: float,
    chat_model: str,
    embedder: str,
    end_ids: tuple[int, ...],
    progress: Callable[[str], None] = lambda _: None,
) -> RestartResult:
    """Learn, stop, and start again in pairs. Raises `ServiceFailed`."""
    folder = Path(tempfile.mkdtemp(prefix="magnitude-bench-dumps-"))
    try:
        dumped, learned_s = _learn(models, folder, learn_s, chat_model, embedder, end_ids, progress)
        starts = []
        for at in range(rounds):
            for with_dump in (True, False) if at % 2 else (False, True):
                progress(f"round {at + 1} of {rounds}, {'with' if with_dump else 'without'} the dump")
                starts.append(
                    _start(models, folder if with_dump else None, dumped, at, requests, chat_model, embedder, end_ids)
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return restart_result(dumped.in_words, learned_s, starts)


def restart_result(dumped: str, learned_s: float, starts: Sequence[Start]) -> RestartResult:
    """Requests are paired by their place: the same one with and without, in each round."""
    withs = [start for start in starts if start.with_dump]
    withouts = [start for start in starts if not start.with_dump]
    pairs = [
        (mine, theirs)
        for one, other in zip(withs, withouts, strict=True)
        for mine, theirs in zip(one.request_s, other.request_s, strict=True)
    ]
    return RestartResult(
        dumped=dumped,
        learned_s=learned_s,
        starts=tuple(starts),
        equal=all(start.first == dumped for start in withs),
        ratio=bootstrap(pairs),
    )


def _learn(
    models: Path,
    folder: Path,
    most_s: float,
    chat_model: str,
    embedder: str,
    end_ids: tuple[int, ...],
    progress: Callable[[str], None],
) -> tuple[Strategy, float]:
    """Until prompts and answers run by more than one thread; what is in force then, and how long it took. Raises
    `ServiceFailed` when they do not."""
    with running_service(models, LEARNING) as service:
        client = StrategyClient(service)
        client.wait_for_loop(chat_model)
        work = Work(service.port, seed=2, run="learn", end_ids=end_ids, embedder=embedder)
        begin, at = time.monotonic(), 0
        while True:
            for phase in (
                Phase(kind="short", share="whole", requests=6),
                Phase(kind="long", share="whole", requests=4),
            ):
                work.do(at, phase)
                at += 1
            time.sleep(LEARNING_REST_S)
            strategy, passed_s = _strategy(client, chat_model), time.monotonic() - begin
            if min(strategy.decode.threads, strategy.prefill.threads) >= LEAST_THREADS:
                break
            if passed_s > most_s:
                raise ServiceFailed(f"in {most_s:.0f} s it learned no more than: {strategy.in_words}")
            progress(f"it learns for {passed_s:.0f} s: {strategy.in_words}")
        # Saved at the stop.
        service.stop()
        shutil.copytree(service.home / "state/strategies", folder / "strategies")
        return strategy, passed_s


def _start(
    models: Path,
    folder: Path | None,
    dumped: Strategy,
    at: int,
    requests: int,
    chat_model: str,
    embedder: str,
    end_ids: tuple[int, ...],
) -> Start:
    def prepare(home: Path) -> None:
        if folder is not None:
            shutil.copytree(folder / "strategies", home / "state/strategies")

    with running_service(models, SETTINGS, prepare=prepare) as service:
        client = StrategyClient(service)
        begin = time.monotonic()
        client.wait_for_loop(chat_model)
        first = _first(client, chat_model, dumped if folder is not None else None)
        after_s = time.monotonic() - begin
        return Start(
            with_dump=folder is not None,
            first=first.in_words,
            after_s=after_s,
            request_s=_requests(service, at, requests, embedder, end_ids),
        )


def _first(client: StrategyClient, model: str, dumped: Strategy | None) -> Strategy:
    """What the loop begins with, as soon as its sessions are there."""
    if dumped is not None:
        client.wait_until(model, prefill=dumped.prefill, decode=dumped.decode)
    return _strategy(client, model)


def _requests(
    service: ServiceProcess, at: int, requests: int, embedder: str, end_ids: tuple[int, ...]
) -> tuple[float, ...]:
    work = Work(service.port, seed=3 + at, run=f"start-{at}", end_ids=end_ids, embedder=embedder)
    times: list[float] = []
    for number in range(requests):
        kind: Kind = "long" if number % 4 == 3 else "short"
        times += work.do(number, Phase(kind=kind, share="whole")).request_s
    return tuple(times)


def _strategy(client: StrategyClient, model: str) -> Strategy:
    strategy = client.state(model).strategy
    if strategy is None:
        raise ServiceFailed(f"{model} has no strategy")
    return strategy
