"""The application over the fake, called in process or served on real sockets."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from fake_inference import FakeInference, FakeTexts

from magnitude.config import ServerSettings, Settings
from magnitude.feedback.metrics import Metrics
from magnitude.feedback.record_store import RecordStore
from magnitude.intake.app import build_app
from magnitude.intake.serve import serve
from magnitude.intake.sockets import ListeningSocket, open_sockets
from magnitude.schedule.strategy_control import StrategyControl

_TEXTS = FakeTexts()  # tokenizers never change, so all tests share them


class InProcess:
    """Requests straight into the application, as from a TCP client on loopback."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        records: RecordStore | None = None,
        strategies: StrategyControl | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.headers: dict[str, str] = {}  # sent with every request
        self.inference = FakeInference(_TEXTS)
        self.metrics = Metrics()
        self.app = build_app(
            self.inference,
            settings or Settings(),
            texts=_TEXTS,
            metrics=self.metrics,
            records=records,
            strategies=strategies,
            clock=clock,
            wall_clock=wall_clock,
        )

    def call(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1:11500", headers=self.headers
            ) as client:
                return await client.request(method, path, **kwargs)

        return asyncio.run(run())

    def post(self, path: str, body: Any, **kwargs: Any) -> httpx.Response:
        return self.call("POST", path, json=body, **kwargs)

    def chat(self, *, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        body = {"model": "tiny-chat", "messages": [{"role": "user", "content": "hello"}], **fields}
        return self.post("/v1/chat/completions", body, headers=headers)

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


class Live:
    """A real server on a loopback port and a unix socket, in a thread of its own."""

    def __init__(self, folder: Path, settings: ServerSettings | None = None) -> None:
        server = settings or ServerSettings()
        self.server = ServerSettings(
            **{f: getattr(server, f) for f in server.__struct_fields__} | {"listen": "127.0.0.1:0"}
        )
        self.inference = FakeInference(_TEXTS)
        self.metrics = Metrics()
        self.sockets: list[ListeningSocket] = open_sockets(self.server, [], run_folder=folder)
        self.unix_path = str(folder / "magnitude.sock")
        self.port = next(s.sock.getsockname()[1] for s in self.sockets if s.sock.family == socket.AF_INET)
        self.url = f"http://127.0.0.1:{self.port}"
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Live:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = build_app(self.inference, Settings(server=self.server), texts=_TEXTS, metrics=self.metrics)
        await serve(
            app,
            self.sockets,
            server=self.server,
            metrics=self.metrics,
            stop=self._stop,
            on_started=self._started.set,
            graceful_s=1,
        )
