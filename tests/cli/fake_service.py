"""A service that speaks the real protocol over a real socket and says what a test tells it to."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fake_strategies import FakeStrategies
from magnitude.config import Settings
from magnitude.errors import MagnitudeError, ModelNotFound
from magnitude.feedback.metrics import Metrics
from magnitude.feedback.records import TaskRow
from magnitude.feedback.timeline import Timeline
from magnitude.intake.context import Context
from magnitude.intake.errors import error_response
from magnitude.intake.live import LiveSettings
from magnitude.intake.strategy import Strategies
from magnitude.text.catalogue import TextCatalogue

STATE = {
    "version": "9.9.9",
    "health": {
        "live": True,
        "ready": True,
        "reasons": [],
        "engine_pid": 4242,
        "engine_restarts": 1,
        "queue_depth": 2,
        "running": 3,
        "uptime_s": 3700.0,
    },
    "engine_phase": "up",
    "engine_steps": 77,
    "engine_rss_bytes": 217_000_000,
    "service_rss_bytes": 60_000_000,
    "models": [
        {
            "name": "tiny-chat",
            "kind": "decoder",
            "family": "llama",
            "failure": "",
            "weight_bytes": 131_000_000,
            "threads": 2,
            "slots": 4,
            "context_tokens": 8192,
            "kv_type": "int8",
            "kv_resident_bytes": 1_500_000,
            "kv_reserved_bytes": 94_000_000,
        }
    ],
    "figures": {},
}


class FakeService:
    """What it answers (`pieces`, `error`, `ready`), and what it was asked (`requests`)."""

    def __init__(self) -> None:
        self.ready = True
        self.pieces: list[str] = ["Par", "is."]
        self.finish = "stop"
        self.error: tuple[int, dict[str, Any]] | None = None
        self.longest_conversation: int | None = None
        self.break_off = False
        self.hang_after: int | None = None
        self.hung_up = threading.Event()
        self.requests: list[dict[str, Any]] = []
        self.kept: list[dict[str, Any]] = []
        self.records: list[TaskRow] = []
        self.timeline = Timeline(since_s=60.0, decisions=[], lanes=[], tasks=[])
        self.asked: dict[str, str] = {}  # the query for them
        self.more_state: dict[str, Any] = {}
        self.recycled: dict[str, Any] = {"reason": "", "engine_pid": 4243, "took_s": 0.5, "open_requests": 0}
        self.recycle_asked: list[Any] = []
        self.reloaded: dict[str, Any] = {"applied": [], "needs_restart": [], "error": "", "hint": ""}
        self.strategies: FakeStrategies | None = None  # told by the service's own route
        self.keys: list[str | None] = []
        self.socket = ""

    def app(self) -> Starlette:
        app = Starlette(
            exception_handlers={MagnitudeError: _error},
            routes=[
                Route("/v1/magnitude/strategy", Strategies),
                Route("/healthz", lambda request: JSONResponse({"status": "ok"})),
                Route("/readyz", self._readyz),
                Route("/version", lambda request: JSONResponse({"version": "9.9.9"})),
                Route("/v1/models", lambda request: JSONResponse({"data": [{"id": "tiny-chat"}]})),
                Route("/v1/magnitude/state", self._state),
                Route("/v1/magnitude/records", self._records),
                Route("/v1/magnitude/timeline", self._timeline),
                Route("/metrics", lambda request: Response("magnitude_slots 4\n")),
                Route("/v1/magnitude/reload", self._reload, methods=["POST"]),
                Route("/v1/magnitude/recycle", self._recycle, methods=["POST"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/magnitude/kv", self._kv, methods=["GET", "DELETE"]),
            ],
        )
        app.state.context = _Late(self)
        return app

    def _readyz(self, request: Request) -> Response:
        reasons = [] if self.ready else ["engine starting"]
        said = {"ready": self.ready, "reasons": reasons, "engine_restarts": 0, "persistence": "on"}
        return JSONResponse(said, 200 if self.ready else 503)

    def _state(self, request: Request) -> Response:
        self.keys.append(request.headers.get("authorization"))
        if self.error:
            return JSONResponse(self.error[1], self.error[0])
        health = {**STATE["health"], "ready": self.ready}  # type: ignore[dict-item]
        return JSONResponse({**STATE, "health": health, **self.more_state})

    def _records(self, request: Request) -> Response:
        self.asked = dict(request.query_params)
        counts = Counter(row.task.outcome for row in self.records)
        return JSONResponse({"data": msgspec.to_builtins(self.records), "counts": counts, "persistence": "on"})

    def _timeline(self, request: Request) -> Response:
        self.asked = dict(request.query_params)
        said = msgspec.to_builtins(self.timeline)
        return JSONResponse({"object": "timeline", "persistence": "on", **said})

    async def _recycle(self, request: Request) -> Response:
        self.recycle_asked.append(await request.json())
        return JSONResponse(*((self.error[1], self.error[0]) if self.error else (self.recycled, 200)))

    def _reload(self, request: Request) -> Response:
        return JSONResponse(*((self.error[1], self.error[0]) if self.error else (self.reloaded, 200)))

    def _kv(self, request: Request) -> Response:
        self.keys.append(request.headers.get("authorization"))
        if request.method == "GET":
            return JSONResponse({"object": "list", "data": self.kept})
        named = request.query_params.get("model")
        gone = [one for one in self.kept if named in (None, one["model"])]
        self.kept = [one for one in self.kept if one not in gone]
        return JSONResponse({"deleted": len(gone)})

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        if self.error:
            return JSONResponse(self.error[1], self.error[0])
        if self.longest_conversation is not None and len(body["messages"]) > self.longest_conversation:
            said = {"message": "too long", "code": "context_length_exceeded", "type": "invalid_request_error"}
            return JSONResponse({"error": said}, 400)
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        try:
            for number, piece in enumerate(self.pieces):
                if number == self.hang_after:
                    await asyncio.sleep(60)
                yield event({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
            if self.break_off:
                return
            yield event({"choices": [{"index": 0, "delta": {}, "finish_reason": self.finish}]})
            usage = {
                "prompt_tokens": 40,
                "completion_tokens": len(self.pieces),
                "total_tokens": 40 + len(self.pieces),
                "prompt_tokens_details": {"cached_tokens": 8},
            }
            yield event({"choices": [], "usage": usage})
            yield "data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.hung_up.set()
            raise


class _Late:
    """The context of the routes that are the service's own: with the strategies that the test has set by then."""

    def __init__(self, service: FakeService) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        context = Context(
            inference=NoModels(),  # type: ignore[arg-type]
            live=LiveSettings(Settings()),
            texts=TextCatalogue(),
            metrics=Metrics(),
            records=None,
            clock=time.monotonic,
            wall_clock=time.time,
            strategies=self._service.strategies,
        )
        return getattr(context, name)


class NoModels:
    """Knows no aliases."""

    def model(self, name: str) -> Any:
        raise ModelNotFound(f"There is no model {name!r}", param="model")


async def _error(request: Request, error: Exception) -> Response:
    assert isinstance(error, MagnitudeError)
    return error_response(error, request.url.path)


def event(data: object) -> str:
    return f"data: {json.dumps(data)}\n\n"


@contextmanager
def running(service: FakeService, folder: Path) -> Iterator[FakeService]:
    """Serve on a unix socket in `folder` until the block ends."""
    service.socket = str(folder / "fake.sock")
    server = uvicorn.Server(
        uvicorn.Config(service.app(), uds=service.socket, log_config=None, timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield service
    finally:
        server.should_exit = True
        thread.join(10)


def at(service: FakeService) -> list[str]:
    """Options that lead a verb to it."""
    return ["--url", f"unix:{service.socket}"]
