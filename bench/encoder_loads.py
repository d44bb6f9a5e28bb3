"""What gathering the requests of many clients brings: one engine process, the same texts one by one and gathered.

One by one: a message a request, two in the engine at a time. Gathered: through `EncodeGate`. Both take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import psutil

import magnitude
from bench.spread import Spread, paired_ratio
from magnitude.engine.client import EngineLink
from magnitude.engine.message import Message
from magnitude.engine.protocol import (
    PROTOCOL_VERSION,
    Embed,
    Failed,
    GetStats,
    Hello,
    Loaded,
    LoadModel,
    PoolUse,
    Stats,
    ToService,
    Vectors,
)
from magnitude.models.description import ModelDescription
from magnitude.schedule.encode_batching import IN_FLIGHT, EncodeLimits
from magnitude.schedule.encode_gate import EncodeGate
from magnitude.schedule.inference import Priority


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """`clients` send `requests` of one text together, each the next one when it has its answer. `beside`: what one
    more client sends at once before them."""

    name: str
    texts: list[list[int]]
    clients: int
    requests: int
    beside: list[list[int]] = []


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One load, both ways, in interleaved rounds: medians, and the ratio formed in each round."""

    name: str
    plain_rate: float  # requests a second
    gathered_rate: float
    ratio: Spread
    plain_p95_ms: float
    gathered_p95_ms: float
    rows: float  # texts a message, gathered
    plain_cpu_ms: float  # processor time of the engine a request
    gathered_cpu_ms: float
    cpu_ratio: Spread  # plain / gathered


class WayBack(msgspec.Struct, frozen=True, kw_only=True):
    """RSS of the engine around one large request: after small ones, after it, and after small ones again."""

    before_bytes: int
    large_bytes: int
    after_bytes: int
    pool: PoolUse


async def measure_loads(
    model: ModelDescription, texts: list[list[int]], *, rounds: int, threads: int
) -> tuple[list[Load], WayBack]:
    """The encoder under several kinds of traffic, each in `rounds` rounds; before them, one large request."""
    by_length = sorted(texts, key=len)
    short, long = by_length[: len(texts) // 4], by_length[len(texts) // 2 :]
    kinds = [
        Traffic(name="16 clients, texts of all lengths", texts=texts, clients=16, requests=96),
        Traffic(name="16 clients, short texts", texts=short, clients=16, requests=192),
        Traffic(name="1 client, short texts", texts=short, clients=1, requests=32),
        Traffic(
            name="4 clients, short texts, beside 128 long ones of another",
            texts=short,
            clients=4,
            requests=24,
            beside=long[:128],
        ),
    ]
    async with _running(model, threads) as engine:
        way_back = await _way_back(engine, model, by_length)
        return [await _measure(engine, model, traffic, rounds) for traffic in kinds], way_back


class _Engine:
    """One engine process, over the service's own link."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self.rows: list[int] = []  # of each message
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "magnitude.engine", "--fd", str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
        theirs.close()
        self._link = EngineLink(ours, self._receive, self._closed)

    async def load(self, model: ModelDescription, threads: int) -> None:
        self._link.start()
        version, pid = magnitude.__version__, self._process.pid
        self._link.send(Hello(protocol_version=PROTOCOL_VERSION, software_version=version, pid=pid))
        request_id = self.next_id()
        # No generation has to wait for a run, so nothing but the batch's own limit bounds it.
        message = LoadModel(request_id=request_id, model=model, threads=threads, max_inter_token_ms=1000)
        answer = await self._ask(message, request_id)
        if not isinstance(answer, Loaded):
            raise RuntimeError(f"the engine answers {answer}")

    def stop(self) -> None:
        self._link.close()
        self._process.kill()
        self._process.wait()

    def next_id(self) -> int:
        return next(self._ids)

    def cpu_s(self) -> float:
        """Processor time so far, which other processes do not disturb as they do the time by the clock."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    async def embed(self, message: Embed, _: Priority = "normal") -> Vectors:
        self.rows.append(len(message.inputs))
        answer = await self._ask(message, message.request_id)
        if not isinstance(answer, Vectors):
            raise RuntimeError(f"the engine answers {answer}")
        return answer

    async def stats(self) -> Stats:
        request_id = self.next_id()
        answer = await self._ask(GetStats(request_id=request_id), request_id)
        if not isinstance(answer, Stats):
            raise RuntimeError(f"the engine answers {answer}")
        return answer

    async def _ask(self, message: Message, request_id: int) -> Message:
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = answer
        self._link.send(message)
        return await answer

    def _receive(self, message: ToService) -> None:
        if isinstance(message, Vectors | Loaded | Failed | Stats):
            self._waiting.pop(message.request_id).set_result(message)

    def _closed(self, reason: str) -> None:
        for answer in self._waiting.values():
            answer.set_exception(RuntimeError(reason))


@contextlib.asynccontextmanager
async def _running(model: ModelDescription, threads: int) -> AsyncIterator[_Engine]:
    engine = _Engine()
    try:
        await engine.load(model, threads)
        yield engine
    finally:
        engine.stop()


async def _way_back(engine: _Engine, model: ModelDescription, by_length: list[list[int]]) -> WayBack:
    """20 short texts, one request of the 32 longest, 20 short ones; the same words throughout, since each new one
    would show another page of the mapped embedding table."""
    longest = by_length[-32:]
    words = longest[-1]

    async def embed(lengths: list[int]) -> None:
        inputs = [words[:length] for length in lengths]
        await engine.embed(Embed(request_id=engine.next_id(), model=model.name, inputs=inputs))

    for _ in range(20):
        await embed([16])
    before = await engine.stats()
    await embed([len(ids) for ids in longest])
    large = await engine.stats()
    for _ in range(20):
        await embed([16])
    after = await engine.stats()
    return WayBack(
        before_bytes=before.rss_bytes,
        large_bytes=large.rss_bytes,
        after_bytes=after.rss_bytes,
        pool=after.run_pool,
    )


Send = Callable[[list[list[int]]], Awaitable[object]]


async def _measure(engine: _Engine, model: ModelDescription, traffic: Traffic, rounds: int) -> Load:
    places = asyncio.Semaphore(IN_FLIGHT)

    async def plain(inputs: list[list[int]]) -> None:
        async with places:
            await engine.embed(Embed(request_id=engine.next_id(), model=model.name, inputs=inputs))

    gate = EncodeGate(engine.embed, limits=EncodeLimits(max_queue=traffic.clients + 1), next_id=engine.next_id)

    async def gathered(inputs: list[list[int]]) -> None:
        await gate.embed(model, inputs, [])

    ways: dict[str, Send] = {"plain": plain, "gathered": gathered}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    p95s_ms: dict[str, list[float]] = {way: [] for way in ways}
    cpus_ms: dict[str, list[float]] = {way: [] for way in ways}
    rows: list[int] = []
    for number in range(rounds + 1):
        for way, send in ways.items():
            engine.rows.clear()
            cpu_s = engine.cpu_s()
            rate, p95_s = await drive(send, traffic, random.Random(number))
            cpu_s = engine.cpu_s() - cpu_s
            if number:  # the first round warms up
                cpus_ms[way].append(cpu_s * 1000 / traffic.requests)
                rates[way].append(rate)
                p95s_ms[way].append(p95_s * 1000)
                rows += engine.rows if way == "gathered" else []
    return Load(
        name=traffic.name,
        plain_rate=statistics.median(rates["plain"]),
        gathered_rate=statistics.median(rates["gathered"]),
        ratio=paired_ratio(rates["gathered"], rates["plain"]),
        plain_p95_ms=statistics.median(p95s_ms["plain"]),
        gathered_p95_ms=statistics.median(p95s_ms["gathered"]),
        rows=statistics.fmean(rows),
        plain_cpu_ms=statistics.median(cpus_ms["plain"]),
        gathered_cpu_ms=statistics.median(cpus_ms["gathered"]),
        cpu_ratio=paired_ratio(cpus_ms["plain"], cpus_ms["gathered"]),
    )


async def drive(send: Send, traffic: Traffic, draw: random.Random) -> tuple[float, float]:
    """Requests a second, and the 95th percentile of their times in seconds."""
    times: list[float] = []

    async def client(inputs: list[list[int]]) -> None:
        for ids in inputs:
            started_s = time.perf_counter()
            await send([ids])
            times.append(time.perf_counter() - started_s)

    large = asyncio.ensure_future(send(traffic.beside)) if traffic.beside else None
    await asyncio.sleep(0)  # the large request comes first
    each = traffic.requests // traffic.clients
    started_s = time.perf_counter()
    await asyncio.gather(*(client(draw.choices(traffic.texts, k=each)) for _ in range(traffic.clients)))
    took_s = time.perf_counter() - started_s
    if large is not None:
        await large
    return len(times) / took_s, sorted(times)[int(0.95 * (len(times) - 1))]
