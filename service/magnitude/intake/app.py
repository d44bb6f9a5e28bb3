"""The HTTP application: which route is answered where."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from magnitude.config import Settings
from magnitude.feedback.metrics import Metrics
from magnitude.feedback.record_store import RecordStore
from magnitude.intake import health, open_inference
from magnitude.intake.chat import chat_completions
from magnitude.intake.completions import completions
from magnitude.intake.context import Context
from magnitude.intake.embeddings import embeddings
from magnitude.intake.errors import error_response, from_http_exception
from magnitude.intake.gate import Gate
from magnitude.intake.kv import KeptKv
from magnitude.intake.live import LiveSettings
from magnitude.intake.models import list_models, show_model
from magnitude.intake.pipeline import pipeline
from magnitude.intake.records import records as list_records
from magnitude.intake.recycle import recycle
from magnitude.intake.reload import reload_configuration
from magnitude.intake.rerank import rerank
from magnitude.intake.reserve import Reserve
from magnitude.intake.strategy import Strategies
from magnitude.intake.timeline import timeline as show_timeline
from magnitude.schedule.inference import Inference
from magnitude.schedule.strategy_control import StrategyControl
from magnitude.text.catalogue import TextCatalogue

ROUTES = [
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/embeddings", embeddings, methods=["POST"]),
    Route("/v1/rerank", rerank, methods=["POST"]),
    Route("/v1/models", list_models, methods=["GET"]),
    Route("/v1/models/{model:path}", show_model, methods=["GET"]),
    Route("/v1/magnitude/kv", KeptKv),
    Route("/healthz", health.healthz, methods=["GET"]),
    Route("/readyz", health.readyz, methods=["GET"]),
    Route("/version", health.version, methods=["GET"]),
    Route("/metrics", health.metrics, methods=["GET"]),
    Route("/v1/magnitude/state", health.state, methods=["GET"]),
    Route("/v1/magnitude/records", list_records, methods=["GET"]),
    Route("/v1/magnitude/timeline", show_timeline, methods=["GET"]),
    Route("/v1/magnitude/reload", reload_configuration, methods=["POST"]),
    Route("/v1/magnitude/pipeline", pipeline, methods=["POST"]),
    Route("/v1/magnitude/reserve", Reserve),
    Route("/v1/magnitude/recycle", recycle, methods=["POST"]),
    Route("/v1/magnitude/strategy", Strategies),
    Route("/openapi.json", health.openapi, methods=["GET"]),
    Route("/v2", open_inference.server_metadata, methods=["GET"]),
    Route("/v2/health/live", open_inference.server_live, methods=["GET"]),
    Route("/v2/health/ready", open_inference.server_ready, methods=["GET"]),
    Route("/v2/models/{model}", open_inference.model_metadata, methods=["GET"]),
    Route("/v2/models/{model}/ready", open_inference.model_ready, methods=["GET"]),
    Route("/v2/models/{model}/infer", open_inference.model_infer, methods=["POST"]),
]


def build_app(
    inference: Inference,
    settings: Settings | LiveSettings,
    *,
    texts: TextCatalogue,
    metrics: Metrics,
    records: RecordStore | None = None,
    strategies: StrategyControl | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall_clock: Callable[[], float] = time.time,
) -> Starlette:
    """The application over `inference`. `clock` is for durations, `wall_clock` for the `created` of answers.
    `records` None: none are kept; `strategies` None: none are learned."""
    live = settings if isinstance(settings, LiveSettings) else LiveSettings(settings)
    app = Starlette(
        routes=ROUTES,
        exception_handlers={HTTPException: _refused_by_router},
        middleware=[Middleware(Gate, live=live, metrics=metrics, clock=clock)],
    )
    metrics.watch_schedule(inference.figures)
    # A path with a slash too many is no route; sending the client elsewhere hides the mistake.
    app.router.redirect_slashes = False
    app.state.context = Context(
        inference=inference,
        live=live,
        texts=texts,
        metrics=metrics,
        records=records,
        strategies=strategies,
        clock=clock,
        wall_clock=wall_clock,
    )
    return app


async def _refused_by_router(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    response = error_response(from_http_exception(error, path, request.method), path)
    response.headers.update(error.headers or {})  # Allow, with a 405
    return response
