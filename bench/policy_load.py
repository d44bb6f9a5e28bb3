"""A changing load on the real service: the strategy loop beside every fixed strategy and the shipped default.

Two services are up, and one of them computes at a time. In one, strategies are fixed by a pin (or it runs as it was
loaded: the default); in the other the loop chooses. All contenders take turns in every round. Nobody is told of the
processor's share before it changes, or waits until a change was seen.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.cpu_share import CpuShare
from bench.policy_figures import DEFAULT, LOOP, LoadRun
from bench.policy_work import SHARES, PhaseRun, Work, phases
from bench.service_process import SERVE, ServiceProcess, running_service
from bench.strategy_client import StrategyClient
from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.strategy import Strategy

SEED = 1
# Drafts depend on what was said before and are equal for all; without them a decode step is a decode step.
COMMON: dict[str, dict[str, Any]] = {"engine": {"speculation": "off"}, "thermal": {"enabled": False}}
FIXED_SETTINGS: dict[str, dict[str, Any]] = {**COMMON, "policy": {"explore": "off"}}
# Rests between the phases while it learns, so that it can probe: clients of a real service pause as well.
LEARNING_REST_S = 4.0


class Fixed(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy of the sweep."""

    decode: int
    prefill: int
    chunk: int

    @property
    def name(self) -> str:
        return f"{self.decode} for answers, {self.prefill} for prompts of {self.chunk}"


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`threads` and `chunks` are swept for prompts and for answers, each with each. `learning_s`: how long the loop
    may learn before the first round."""

    rounds: int
    threads: tuple[int, ...]
    chunks: tuple[int, ...]
    scale: float
    learning_s: float

    @property
    def fixed(self) -> list[Fixed]:
        return [
            Fixed(decode=decode, prefill=prefill, chunk=chunk)
            for decode, prefill, chunk in itertools.product(self.threads, self.threads, self.chunks)
        ]

    @property
    def contenders(self) -> list[str]:
        return [DEFAULT, *(fixed.name for fixed in self.fixed), LOOP]


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """`learning` are passes that are not judged. `share`: how the processor was taken away."""

    plan: LoadPlan
    share: str
    runs: tuple[LoadRun, ...] = ()
    learning: tuple[LoadRun, ...] = ()


class Kept:
    """Runs on disk, so that a measurement that was cut off goes on with the round that it was in."""

    def __init__(self, path: Path | None, result: LoadResult) -> None:
        self._path = path
        self.result = result
        if path is not None and path.exists():
            before = msgspec.json.decode(path.read_bytes(), type=LoadResult)
            if (before.plan, before.share) == (result.plan, result.share):
                self.result = before

    def has(self, contender: str, at: int) -> bool:
        return any((run.contender, run.round) == (contender, at) for run in self.result.runs)

    def add(self, run: LoadRun, *, learning: bool = False) -> None:
        before = self.result
        if learning:
            self.result = msgspec.structs.replace(before, learning=(*before.learning, run))
        else:
            self.result = msgspec.structs.replace(before, runs=(*before.runs, run))
        if self._path is not None:
            self._path.write_bytes(msgspec.json.encode(self.result))


def measure_load(
    models: Path,
    plan: LoadPlan,
    share: CpuShare,
    *,
    chat_model: str,
    embedder: str,
    end_ids: tuple[int, ...],
    keep: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> LoadResult:
    """All contenders in all rounds. Raises `ServiceFailed`."""
    kept = Kept(keep, LoadResult(plan=plan, share=share.how))
    command = share.command(SERVE)
    with running_service(models, FIXED_SETTINGS, command) as still, running_service(models, COMMON, command) as loop:
        arena = _Arena(plan, share, still, loop, chat_model=chat_model, embedder=embedder, end_ids=end_ids)
        arena.learn(kept, progress)
        for at in range(plan.rounds):
            # Each round begins with another contender, so that none always has the same neighbours.
            names = plan.contenders[at:] + plan.contenders[:at]
            for number, name in enumerate(names):
                if not kept.has(name, at):
                    progress(f"round {at + 1} of {plan.rounds}, {number + 1} of {len(names)}: {name}")
                    kept.add(arena.run(name, at))
    return kept.result


class _Arena:
    """Both services, and the work."""

    def __init__(
        self,
        plan: LoadPlan,
        share: CpuShare,
        still: ServiceProcess,
        loop: ServiceProcess,
        *,
        chat_model: str,
        embedder: str,
        end_ids: tuple[int, ...],
    ) -> None:
        self._plan = plan
        self._share = share
        self._services = (still, loop)
        self._still, self._loop = StrategyClient(still), StrategyClient(loop)
        self._chat_model, self._embedder, self._end_ids = chat_model, embedder, end_ids
        self._fixed = {fixed.name: fixed for fixed in plan.fixed}
        self._runs = 0
        for client in (self._still, self._loop):
            for model in (chat_model, embedder):
                client.wait_for_loop(model)
            client.hold(on=True)

    def learn(self, kept: Kept, progress: Callable[[str], None]) -> None:
        """Passes with rests, until the time is up."""
        self._loop.hold(on=False)
        begin, passes = time.monotonic(), 0
        while (left_s := self._plan.learning_s - (time.monotonic() - begin)) > 0:
            progress(f"the loop learns for another {left_s:.0f} s")
            kept.add(self._pass(LOOP, -1 - passes, self._loop, rest_s=LEARNING_REST_S), learning=True)
            passes += 1
        self._loop.hold(on=True)

    def run(self, name: str, at: int) -> LoadRun:
        """One contender through the load."""
        if name == LOOP:
            self._loop.hold(on=False)
            try:
                return self._pass(name, at, self._loop)
            finally:
                self._loop.hold(on=True)
        self._loop.hold(on=True)  # it would be over by itself before the round is
        if name == DEFAULT:
            self._still.hold(on=True)
            return self._pass(name, at, self._still)
        fixed = self._fixed[name]
        decode, prefill = (SessionSpec(threads=threads) for threads in (fixed.decode, fixed.prefill))
        still = self._still
        still.hold(on=False)
        try:
            pinned = {"threads": fixed.prefill}
            still.pin(self._chat_model, decode={"threads": fixed.decode}, prefill=pinned, chunk=fixed.chunk)
            still.pin(self._embedder, prefill=pinned)
            still.wait_until(self._chat_model, prefill=prefill, decode=decode)
            still.wait_until(self._embedder, prefill=prefill)
            return self._pass(name, at, still)
        finally:
            still.hold(on=True)

    def _pass(self, name: str, at: int, client: StrategyClient, *, rest_s: float = 0.0) -> LoadRun:
        self._runs += 1
        work = Work(
            client.service.port, seed=SEED, run=str(self._runs), end_ids=self._end_ids, embedder=self._embedder
        )
        done: list[PhaseRun] = []
        strategies: list[str] = []
        before = self._switches(client)
        share = 1.0
        work.warm_up()
        try:
            for place, phase in enumerate(phases(self._plan.scale)):
                if SHARES[phase.share] != share:
                    share = SHARES[phase.share]
                    self._limit(share)
                done.append(work.do(place, phase))
                strategies.append(in_short(client.state(self._chat_model).strategy))
                time.sleep(rest_s)
        finally:
            self._limit(1.0)
        return LoadRun(
            contender=name,
            round=at,
            phases=tuple(done),
            strategies=tuple(strategies),
            switches=self._switches(client) - before,
        )

    def _limit(self, share: float) -> None:
        for service in self._services:
            self._share.set(share, service.pid)

    def _switches(self, client: StrategyClient) -> int:
        decisions = client.state(self._chat_model).counts.decisions
        return sum(sum(decisions.get(kind, {}).values()) for kind in ("switch", "revert"))


def in_short(strategy: Strategy | None) -> str:
    """As the fixed ones are named."""
    if strategy is None:
        return "none"
    return Fixed(decode=strategy.decode.threads, prefill=strategy.prefill.threads, chunk=strategy.prefill_chunk).name
