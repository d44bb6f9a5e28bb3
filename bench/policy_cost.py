"""What the strategy loop costs where there is nothing to gain: processor time for a request of a flat load, and at
rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bench.policy_figures import Interval, bootstrap
from bench.policy_load import COMMON
from bench.policy_work import Phase, Work
from bench.service_process import ServiceProcess, running_service
from bench.strategy_client import StrategyClient

MOST_OF_A_REQUEST = 0.01
MOST_OF_A_CORE = 0.005
OFF: dict[str, dict[str, Any]] = {**COMMON, "engine": {**COMMON["engine"], "self_optimize": False}}


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A block of requests with the loop on and one with it off, one after the other: processor seconds of service and
    engine together, and of the loop alone by its own count."""

    requests: int
    on_cpu_s: float
    off_cpu_s: float
    loop_cpu_s: float
    on_s: float
    off_s: float


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """The same time at rest, both services side by side. `probes` were begun meanwhile."""

    seconds: float
    on_cpu_s: float
    off_cpu_s: float
    loop_cpu_s: float
    probes: int


class CostResult(msgspec.Struct, frozen=True, kw_only=True):
    """`loop_share`: the loop's own processor time, of all that a request takes. `cpu_ratio`: a request's with the
    loop by without it, all that the loop has the engine do included. `idle_share`: of one core, the loop's own; the
    `idle_difference` includes its probes."""

    blocks: tuple[Block, ...]
    idle: Idle
    loop_share: float
    cpu_ratio: Interval
    time_ratio: Interval
    idle_share: float
    idle_difference: float

    @property
    def missed(self) -> list[str]:
        found = []
        if self.loop_share > MOST_OF_A_REQUEST:
            found.append(
                f"the loop takes {self.loop_share:.2%} of a request's processor time, goal {MOST_OF_A_REQUEST:.0%}"
            )
        if self.idle_share > MOST_OF_A_CORE:
            found.append(f"the loop takes {self.idle_share:.2%} of a core at rest, goal {MOST_OF_A_CORE:.1%}")
        return found


def measure_cost(
    models: Path,
    *,
    rounds: int,
    requests: int,
    idle_s: float,
    chat_model: str,
    embedder: str,
    end_ids: tuple[int, ...],
    progress: Callable[[str], None] = lambda _: None,
) -> CostResult:
    """Blocks in turn, then a rest. Raises `ServiceFailed`."""
    phase = Phase(kind="short", share="whole", requests=requests)
    with running_service(models, COMMON) as on, running_service(models, OFF) as off:
        client = StrategyClient(on)
        for model in (chat_model, embedder):
            client.wait_for_loop(model)
        works = [Work(service.port, seed=1, run="cost", end_ids=end_ids, embedder=embedder) for service in (on, off)]
        for work in works:
            work.warm_up()
        blocks = []
        for at in range(rounds):
            progress(f"round {at + 1} of {rounds}")
            blocks.append(_block(at, phase, on, off, works, client))
        idle = _rest(idle_s, on, off, client, progress)
    return cost_result(blocks, idle)


def cost_result(blocks: Sequence[Block], idle: Idle) -> CostResult:
    return CostResult(
        blocks=tuple(blocks),
        idle=idle,
        loop_share=sum(block.loop_cpu_s for block in blocks) / sum(block.on_cpu_s for block in blocks),
        cpu_ratio=bootstrap([(block.on_cpu_s, block.off_cpu_s) for block in blocks]),
        time_ratio=bootstrap([(block.on_s, block.off_s) for block in blocks]),
        idle_share=idle.loop_cpu_s / idle.seconds,
        idle_difference=(idle.on_cpu_s - idle.off_cpu_s) / idle.seconds,
    )


def _block(
    at: int, phase: Phase, on: ServiceProcess, off: ServiceProcess, works: Sequence[Work], client: StrategyClient
) -> Block:
    """Who is first changes from round to round. While the other one is measured the loop does nothing."""
    cpu_s, seconds, loop_s = dict[bool, float](), dict[bool, float](), 0.0
    for with_loop in (True, False) if at % 2 else (False, True):
        client.hold(on=not with_loop)
        service = on if with_loop else off
        before, loop_before = _cpu_s(service.pid), _loop_s(client)
        begin = time.perf_counter()
        works[not with_loop].do(at, phase)
        seconds[with_loop] = time.perf_counter() - begin
        cpu_s[with_loop] = _cpu_s(service.pid) - before
        if with_loop:
            loop_s = _loop_s(client) - loop_before
    return Block(
        requests=phase.requests,
        on_cpu_s=cpu_s[True],
        off_cpu_s=cpu_s[False],
        loop_cpu_s=loop_s,
        on_s=seconds[True],
        off_s=seconds[False],
    )


def _rest(
    seconds: float, on: ServiceProcess, off: ServiceProcess, client: StrategyClient, progress: Callable[[str], None]
) -> Idle:
    client.hold(on=False)
    before = (_cpu_s(on.pid), _cpu_s(off.pid), _loop_s(client), _probes(client))
    begin = time.monotonic()
    while (passed_s := time.monotonic() - begin) < seconds:
        progress(f"at rest, {seconds - passed_s:.0f} s to go")
        time.sleep(min(10.0, seconds - passed_s))
    after = (_cpu_s(on.pid), _cpu_s(off.pid), _loop_s(client), _probes(client))
    on_s, off_s, loop_s, probes = (late - early for late, early in zip(after, before, strict=True))
    return Idle(
        seconds=time.monotonic() - begin, on_cpu_s=on_s, off_cpu_s=off_s, loop_cpu_s=loop_s, probes=round(probes)
    )


def _cpu_s(pid: int) -> float:
    """Of the service and its engines."""
    process = psutil.Process(pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(time.user + time.system for time in times)


def _loop_s(client: StrategyClient) -> float:
    """Of the loops of all models."""
    return sum(state.counts.cpu_s for state in client.service.state().strategy.values())


def _probes(client: StrategyClient) -> float:
    return float(sum(sum(state.counts.probes.values()) for state in client.service.state().strategy.values()))
