"""Is it alive, can it work, what is it: answered from memory, without asking the engine."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnitude import __version__
from magnitude.intake.context import context_of
from magnitude.intake.openapi import openapi_document
from magnitude.intake.replies import json_reply


async def healthz(request: Request) -> Response:
    """Live: the event loop turns. Says nothing about the engine, so that a probe does not kill a loading service."""
    health = context_of(request).inference.health()
    body = {"status": "ok" if health.live else "failing", "uptime_s": round(health.uptime_s, 1)}
    return json_reply(body, status=200 if health.live else 503)


async def readyz(request: Request) -> Response:
    """Ready: every model that should serve can. Otherwise 503, with the reasons."""
    health = context_of(request).inference.health()
    body = {
        "ready": health.ready,
        "reasons": health.reasons,
        "queue_depth": health.queue_depth,
        "running": health.running,
        "engine_restarts": health.engine_restarts,
        "persistence": health.persistence,
    }
    return json_reply(body, None if health.ready else {"Retry-After": "1"}, status=200 if health.ready else 503)


async def version(request: Request) -> Response:
    return json_reply({"name": "magnitude", "version": __version__})


async def state(request: Request) -> Response:
    """How each model runs, what it holds, and the running figures: what `magnitude ps` shows. `reload`: how reading
    the configuration again went the last time."""
    context = context_of(request)
    state = msgspec.to_builtins(context.inference.state())
    return json_reply({**state, "reload": context.live.last_reload})


async def metrics(request: Request) -> Response:
    """All numbers for Prometheus."""
    return Response(context_of(request).metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def openapi(request: Request) -> Response:
    return json_reply(openapi_document())
