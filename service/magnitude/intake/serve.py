"""Runs the application on sockets that are open already."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator, Sequence

import uvicorn
from starlette.types import ASGIApp

from magnitude.config import ServerSettings
from magnitude.feedback.metrics import Metrics
from magnitude.intake.connection import bounded_protocol
from magnitude.intake.sockets import ListeningSocket

# An idle connection of a client that keeps it open costs a descriptor and some kilobytes.
_KEEP_ALIVE_S = 20
# Request line and headers; browsers and proxies stay below 16 KB, long tokens in headers do not.
_MAX_HEAD_BYTES = 64 * 1024
# After the last connection is taken, so many turns of the loop and so much time until its request is read: the turns
# for a loop that is slow, the time for a client that has connected and is about to send.
_LAST_TURNS = 5
_LAST_TURN_S = 0.02


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: stopping is the service's business."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self._on_started is not None:
            self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no further connections, read what the last ones ask, then stop as uvicorn does. It closes those that
        have asked nothing: their clients would see neither an answer nor a refusal, where the next service, to which
        a socket of the service manager passes, would have served them."""
        for server in self.servers:
            server.close()
        for _ in range(_LAST_TURNS):
            await asyncio.sleep(_LAST_TURN_S)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def serve(
    app: ASGIApp,
    sockets: Sequence[ListeningSocket],
    *,
    server: ServerSettings,
    metrics: Metrics,
    stop: asyncio.Event,
    on_started: Callable[[], None] | None = None,
    graceful_s: float = 10.0,
) -> None:
    """Serve until `stop` is set, then let open requests end for at most `graceful_s` and close the sockets.

    `on_started` is called once when connections are taken.
    """
    config = uvicorn.Config(
        app,
        http=bounded_protocol(server, metrics),
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        # Headers of proxies could forge the address that decides about access.
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(graceful_s)),
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
    )
    runner = _Server(config, on_started)
    running = asyncio.ensure_future(runner.serve(sockets=[listening.sock for listening in sockets]))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        runner.should_exit = True
        stopping.cancel()
        try:
            await asyncio.shield(running)
        finally:
            for listening in sockets:
                listening.close()
