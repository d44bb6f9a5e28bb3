"""Traffic of every kind while the engine is killed again and again: nobody gets a wrong answer, nothing is left over.

The service runs in this process, so that its descriptors can be counted and its engine be struck at any moment.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from magnitude.config import EngineSettings, ServerSettings, Settings
from magnitude.intake.app import build_app
from magnitude.intake.serve import serve
from magnitude.intake.sockets import open_sockets
from magnitude.paths import find_paths
from magnitude.service import Service
from magnitude.supervise.lifecycle import EngineLifecycle, Phase
from magnitude.text.catalogue import TextCatalogue

pytestmark = pytest.mark.models

CHAT = "smollm2-135m-instruct"
EMBEDDER = "all-minilm-l6-v2"
KILLS = 20
PROMPTS = ["Name the capital of France.", "Name three colours.", "Count from one to ten."]
PATIENCE_S = 120.0  # a test that waits so long has failed
STRIKES_S = KILLS * 20.0  # an engine takes seconds to be back on a machine that is busy otherwise


def chat_body(prompt: str, **more: Any) -> dict[str, Any]:
    body = {"model": CHAT, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 12}
    return body | more


class Traffic:
    """Clients that go on until `stop`; `seen` counts how their requests ended."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.stop = False
        self.seen: Counter[str] = Counter()
        self.texts: dict[str, str] = {}
        self.vector: list[float] = []

    async def learn(self) -> None:
        """The undisturbed answers."""
        for prompt in PROMPTS:
            reply = await self.client.post("/v1/chat/completions", json=chat_body(prompt))
            assert reply.status_code == 200, reply.text
            self.texts[prompt] = reply.json()["choices"][0]["message"]["content"]
        self.vector = (await self.client.post("/v1/embeddings", json={"model": EMBEDDER, "input": "text"})).json()[
            "data"
        ][0]["embedding"]

    async def whole(self, prompt: str) -> None:
        reply = await self.client.post("/v1/chat/completions", json=chat_body(prompt))
        assert reply.status_code == 200, reply.text
        assert reply.json()["choices"][0]["message"]["content"] == self.texts[prompt]
        self.seen["answered"] += 1
        self.seen["recovered"] += int(reply.headers.get("x-magnitude-recoveries", 0))

    async def streamed(self, prompt: str) -> None:
        text, done = "", False
        async with self.client.stream("POST", "/v1/chat/completions", json=chat_body(prompt, stream=True)) as reply:
            assert reply.status_code == 200, await reply.aread()
            async for line in reply.aiter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    done = True
                else:
                    event = json.loads(line[6:])
                    assert "error" not in event, event
                    text += event["choices"][0]["delta"].get("content") or ""
        assert done, "a stream ended without [DONE] and without an error"
        assert text == self.texts[prompt]
        self.seen["streamed"] += 1

    async def embedded(self, _: str) -> None:
        reply = await self.client.post("/v1/embeddings", json={"model": EMBEDDER, "input": "text"})
        assert reply.status_code == 200, reply.text
        assert reply.json()["data"][0]["embedding"] == pytest.approx(self.vector, abs=1e-5)
        self.seen["embedded"] += 1

    async def left(self, prompt: str) -> None:
        """A client that goes away, sometimes before the first token."""
        body = chat_body(prompt * random.choice([1, 40]), stream=True, max_tokens=2000)
        try:
            async with asyncio.timeout(random.uniform(0.0, 0.4)):
                async with self.client.stream("POST", "/v1/chat/completions", json=body) as reply:
                    async for _ in reply.aiter_raw():
                        pass
        except TimeoutError:
            self.seen["left"] += 1

    async def repeat(self, one: Callable[[str], Awaitable[None]]) -> None:
        while not self.stop:
            await one(random.choice(PROMPTS))
            await asyncio.sleep(0.05)


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not fact():
            await asyncio.sleep(0.01)


async def strike(service: Service, kills: int) -> None:
    """Kill engine after engine: most while they serve, some while they start or load."""
    supervisor = service.supervisor
    for number in range(kills):
        # Crashes in a row before anything was done would be laid to a request; kills from outside never are.
        how = signal.SIGKILL
        match number % 5:
            case 4:
                await until(lambda: supervisor.pid is not None and supervisor.lifecycle.phase is not Phase.UP)
                await asyncio.sleep(random.uniform(0.0, 0.8))
            case 3:  # time enough for whole answers
                await until(lambda: supervisor.lifecycle.phase is Phase.UP)
                await asyncio.sleep(random.uniform(2.0, 3.0))
                how = random.choice([signal.SIGSEGV, signal.SIGABRT])
            case _:
                await until(lambda: supervisor.lifecycle.phase is Phase.UP)
                await asyncio.sleep(random.uniform(0.0, 0.8))
        if (pid := supervisor.pid) is not None:
            os.kill(pid, how)
            await until(lambda pid=pid: supervisor.pid != pid)  # type: ignore[misc]


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_killing_engines_under_traffic_costs_nobody_an_answer_and_leaves_nothing_behind(
    magnitude_home: Path, tmp_path: Path
) -> None:
    (tmp_path / "models").symlink_to(magnitude_home / "models")
    asyncio.run(run_trouble(tmp_path))


async def run_trouble(home: Path) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    # With a float KV cache verified drafts round differently, and answers are compared with undisturbed ones.
    settings = Settings(server=ServerSettings(listen="127.0.0.1:0"), engine=EngineSettings(speculation="off"))
    paths = find_paths({"MAGNITUDE_HOME": str(home)})
    for folder in (paths.state, paths.run):
        folder.mkdir()
    service = Service(settings, paths)
    # Twenty deaths in a minute would otherwise be half an hour of back-off.
    service.supervisor.lifecycle = EngineLifecycle(load_deadline_s=120, step_deadline_s=60, backoff_max_s=0.25)
    metrics = service.metrics()
    app = build_app(service.dispatcher, settings, texts=TextCatalogue(), metrics=metrics)
    sockets = open_sockets(settings.server, [], run_folder=paths.run)
    socket = str(paths.unix_socket)
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(app, sockets, server=settings.server, metrics=metrics, stop=stop))
    watch = asyncio.create_task(service.supervisor.run())
    try:
        await until(lambda: service.supervisor.lifecycle.phase is Phase.UP)
        async with client_of(socket) as client:
            traffic = Traffic(client)
            await traffic.learn()
        await asyncio.sleep(0.3)  # until the closed connections are gone on this side, too
        before = open_descriptors()
        async with client_of(socket) as client:
            traffic.client = client
            kinds = [traffic.whole, traffic.streamed, traffic.embedded, traffic.left]
            async with asyncio.timeout(STRIKES_S), asyncio.TaskGroup() as group:
                for kind in kinds:
                    group.create_task(traffic.repeat(kind))
                await strike(service, KILLS)
                traffic.stop = True
            await until(lambda: service.supervisor.lifecycle.phase is Phase.UP)
            assert service.supervisor.lifecycle.restarts == KILLS
            calm = Traffic(client)
            await calm.learn()
        assert (calm.texts, calm.vector) == (traffic.texts, pytest.approx(traffic.vector, abs=1e-5))
        seen = traffic.seen
        assert seen["answered"] + seen["streamed"] and seen["embedded"] and seen["left"], seen
        assert seen["recovered"], seen
        await until(lambda: (service.dispatcher.running, service.dispatcher.waiting) == (0, 0))
        assert await service.dispatcher.forget(None) > 0
        await until(lambda: service.dispatcher.kv_resident_bytes() < 1_000_000)
        await until(lambda: open_descriptors() <= before)
        gc.collect()
        assert complaints == []
    finally:
        stop.set()
        await serving
        watch.cancel()
        await service.stop()


def client_of(socket: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=socket), base_url="http://localhost", timeout=PATIENCE_S
    )
