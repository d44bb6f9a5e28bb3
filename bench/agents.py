"""Agents that compute and wait for their tools: what throughput they get out of the compute slots.

Sixteen agents hold conversations of several turns. After each answer an agent waits three times as long as that
answer computed. The loads take turns in every round, over the same service:

- *saturated*: nobody waits, so the queue is never empty; its tokens a second are the measure of the others;
- *even*: every wait is three times the compute time;
- *uneven*: waits are exponentially distributed, with that mean;
- *pool*: the agents of *even*, with the waits they had there, behind a thread pool in the client: as many threads as
  compute slots send one request after the other, with `X-Magnitude-Keep: no`, so that no prefix is reused.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from bench.chat import COLD, Reply, chat
from bench.greenhouse import Agent
from bench.health import percentile
from bench.service_process import ServiceProcess
from bench.spread import Spread, paired_ratio
from magnitude.schedule.segments import Capacity

AGENTS = 16
WAIT_FACTOR = 3.0
# What the throughput is to be at least, as a multiple of the saturated one, with 95 of 100 requests waiting for a
# compute slot no longer than so many mean compute times.
THROUGHPUT_GOAL = 0.85
QUEUE_LIMIT = 2.0
# A slot costs memory only for the tokens in it: one for every conversation under way, and for those that ended while
# the others go on.
SERVICE_SETTINGS = {"kv": {"slots": 4 * AGENTS}}
# Every agent has had its first turn after so much of a load's time; what ends before is not counted.
WARM_UP_SHARE = 0.25

Load = Literal["saturated", "even", "uneven", "pool"]
LOADS: tuple[Load, ...] = ("saturated", "even", "uneven", "pool")


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """One request that is over. `total_s` is the agent's: with all that it waited for a thread or a slot."""

    at_s: float
    reply: Reply
    total_s: float

    @property
    def queue_s(self) -> float:
        """Time in which the agent wanted to compute and did not."""
        return self.total_s - self.reply.compute_s


class LoadRun(msgspec.Struct, frozen=True, kw_only=True):
    """One load in one round. `capacity` is the service's own estimate at its end."""

    load: Load
    requests: int
    seconds: float
    tokens_per_s: float
    compute_s: float
    wait_s: float
    queue_p95_s: float
    total_p95_s: float
    batch: float
    cached_share: float
    capacity: Capacity


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """One load over all rounds. `predicted`: relative throughput by the formula for even times, or by the closed form
    for uneven ones, from the compute and wait times that were measured; `conversations`: what the service itself says
    that its slots carry. None where they do not apply."""

    load: Load
    tokens_per_s: Spread
    relative: Spread
    predicted: Spread | None
    conversations: Spread | None
    queue_p95_s: Spread
    queue_p95_computes: Spread
    total_p95_s: Spread
    compute_s: Spread
    batch: Spread
    cached_share: Spread


class AgentsResult(msgspec.Struct, frozen=True, kw_only=True):
    agents: int
    compute_slots: int
    wait_factor: float
    results: list[LoadResult]
    runs: list[LoadRun]

    @property
    def missed(self) -> list[str]:
        """What was not reached, in words."""
        found = []
        for result in self.results:
            if result.load not in ("even", "uneven"):
                continue
            if result.relative.median < THROUGHPUT_GOAL:
                found.append(f"{result.load}: {result.relative.median:.2f} of saturated, goal {THROUGHPUT_GOAL}")
            if result.queue_p95_computes.median > QUEUE_LIMIT:
                found.append(
                    f"{result.load}: p95 in the queue is {result.queue_p95_computes.median:.1f} compute times, "
                    f"limit {QUEUE_LIMIT:g}"
                )
        return found


def predicted_even(agents: int, slots: int, compute_s: float, wait_s: float) -> float:
    """Throughput of the formula, as a share of saturated slots: agents / (slots * (1 + T_wait / T_compute)), at
    most 1."""
    return min(1.0, agents / (slots * (1 + wait_s / compute_s)))


def predicted_uneven(agents: int, slots: int, compute_s: float, wait_s: float) -> float:
    """The same where both times are exponentially distributed: the share of busy slots in the machine-repair model
    M/M/c//N, from the probabilities of n agents computing or queueing."""
    weights = [1.0]
    for present in range(1, agents + 1):
        arrivals = (agents - present + 1) / wait_s
        departures = min(present, slots) / compute_s
        weights.append(weights[-1] * arrivals / departures)
    busy = sum(min(present, slots) * weight for present, weight in enumerate(weights))
    return busy / (slots * sum(weights))


def measure_agents(
    service: ServiceProcess,
    end_ids: tuple[int, ...],
    rounds: int,
    seconds: float,
    progress: Callable[[str], None] = lambda _: None,
) -> AgentsResult:
    """Run every load for `seconds` in each round. Raises `ServiceFailed`."""
    runs: list[LoadRun] = []
    for at in range(rounds):
        waits: list[float] = []
        # The pool replays waits, so it follows; which of the others comes first changes.
        first = LOADS[: at % 3] or LOADS[:0]
        for load in (*LOADS[at % 3 : 3], *first, LOADS[3]):
            progress(f"round {at + 1}: {load}")
            runs.append(_Run(service, load, end_ids, seconds, seed=at, waits=waits).measure())
    slots = runs[-1].capacity.compute_slots
    saturated = [run.tokens_per_s for run in runs if run.load == "saturated"]
    return AgentsResult(
        agents=AGENTS,
        compute_slots=slots,
        wait_factor=WAIT_FACTOR,
        results=[load_result([run for run in runs if run.load == load], saturated, slots) for load in LOADS],
        runs=runs,
    )


class _Run:
    """One load: agents in threads of their own, a pool between them and the service where it asks for one."""

    def __init__(
        self,
        service: ServiceProcess,
        load: Load,
        end_ids: tuple[int, ...],
        seconds: float,
        *,
        seed: int,
        waits: list[float],
    ) -> None:
        self._service = service
        self._load = load
        self._name = f"{load}-{seed}"
        self._seconds = seconds
        self._agents = [
            Agent(number, random.Random(f"{self._name}-{number}"), end_ids) for number in range(1, AGENTS + 1)
        ]
        self._waits = waits
        self._done: list[Done] = []
        self._failures: list[Exception] = []
        self._over = threading.Event()
        self._closed = threading.Event()  # nobody will ask the pool any more
        self._pool: queue.SimpleQueue[tuple[dict[str, Any], queue.SimpleQueue[Reply | Exception]]] = (
            queue.SimpleQueue()
        )

    def measure(self) -> LoadRun:
        slots = next(iter(self._service.state().schedule.models.values())).capacity.compute_slots
        begin = time.perf_counter()
        threads = [threading.Thread(target=self._live, args=(agent,), daemon=True) for agent in self._agents]
        workers = [threading.Thread(target=self._work, daemon=True) for _ in range(slots)]
        for thread in (*threads, *(workers if self._load == "pool" else ())):
            thread.start()
        self._over.wait(self._seconds)
        end = time.perf_counter()
        capacity = next(iter(self._service.state().schedule.models.values())).capacity
        self._over.set()
        for thread in threads:
            thread.join()
        self._closed.set()
        if self._failures:
            raise self._failures[0]
        counted_from = begin + WARM_UP_SHARE * self._seconds
        done = [one for one in self._done if counted_from <= one.at_s <= end]
        return LoadRun(load=self._load, capacity=capacity, **figures_of(done, end - counted_from))

    def _live(self, agent: Agent) -> None:
        draw = random.Random(f"{self._name}-{agent.number}-waits")
        waits = self._waits_of(draw)
        try:
            while not self._over.is_set():
                begin = time.perf_counter()
                reply = self._ask(agent.next_body(), agent.conversation)
                now = time.perf_counter()
                agent.answered(reply)
                self._done.append(Done(at_s=now, reply=reply, total_s=now - begin))
                wait_s = waits(reply.compute_s)
                if self._load == "even":
                    self._waits.append(wait_s)
                self._over.wait(wait_s)
        except Exception as error:
            self._failures.append(error)
            self._over.set()

    def _waits_of(self, draw: random.Random) -> Callable[[float], float]:
        """How long an agent waits after an answer that computed for so long."""
        if self._load == "even":
            return lambda compute_s: WAIT_FACTOR * compute_s
        if self._load == "uneven":
            return lambda compute_s: draw.expovariate(1 / (WAIT_FACTOR * compute_s))
        if self._load == "pool":
            return lambda _: draw.choice(self._waits)
        return lambda _: 0.0

    def _ask(self, body: dict[str, Any], conversation: str) -> Reply:
        if self._load != "pool":
            # A kind of task of its own: the service measures waits for each kind.
            terms = {"X-Magnitude-Conversation": f"{self._name}-{conversation}", "X-Magnitude-Task": self._load}
            return chat(self._service.port, body, terms)
        answer: queue.SimpleQueue[Reply | Exception] = queue.SimpleQueue()
        self._pool.put((body, answer))
        reply = answer.get()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _work(self) -> None:
        """A thread of the pool."""
        for body, answer in self._orders():
            try:
                answer.put(chat(self._service.port, body, COLD))
            except Exception as error:
                answer.put(error)

    def _orders(self) -> Iterator[tuple[dict[str, Any], queue.SimpleQueue[Reply | Exception]]]:
        while not self._closed.is_set():
            try:
                yield self._pool.get(timeout=0.2)
            except queue.Empty:
                continue


def figures_of(done: list[Done], seconds: float) -> dict[str, Any]:
    """The figures of a load from the requests that ended in `seconds`. Raises `ValueError` without any."""
    if not done:
        raise ValueError("no request ended in the time that is counted: measure for longer")
    prompts = sum(one.reply.prompt_tokens for one in done)
    compute_s = sum(one.reply.compute_s for one in done) / len(done)
    return {
        "requests": len(done),
        "seconds": seconds,
        "tokens_per_s": sum(one.reply.new_tokens for one in done) / seconds,
        "compute_s": compute_s,
        "wait_s": WAIT_FACTOR * compute_s,
        "queue_p95_s": percentile([one.queue_s for one in done], 0.95),
        "total_p95_s": percentile([one.total_s for one in done], 0.95),
        "batch": sum(one.reply.batch for one in done) / len(done),
        "cached_share": sum(one.reply.cached_tokens for one in done) / prompts,
    }


def load_result(runs: list[LoadRun], saturated: list[float], slots: int) -> LoadResult:
    """One load's rounds, in figures, with what theory says of the times that were measured in it."""
    load = runs[0].load
    predict = {"even": predicted_even, "uneven": predicted_uneven}.get(load)
    waits = load in ("even", "uneven")
    return LoadResult(
        load=load,
        tokens_per_s=Spread.of([run.tokens_per_s for run in runs]),
        relative=paired_ratio([run.tokens_per_s for run in runs], saturated),
        predicted=Spread.of([predict(AGENTS, slots, run.compute_s, run.wait_s) for run in runs]) if predict else None,
        conversations=Spread.of([run.capacity.conversations for run in runs]) if waits else None,
        queue_p95_s=Spread.of([run.queue_p95_s for run in runs]),
        queue_p95_computes=Spread.of([run.queue_p95_s / run.compute_s for run in runs]),
        total_p95_s=Spread.of([run.total_p95_s for run in runs]),
        compute_s=Spread.of([run.compute_s for run in runs]),
        batch=Spread.of([run.batch for run in runs]),
        cached_share=Spread.of([run.cached_share for run in runs]),
    )
