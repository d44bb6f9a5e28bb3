"""`/v1/magnitude/timeline`: what was decided lately and why, and what ran meanwhile. Admin only, as records are."""

from __future__ import annotations

import math

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnitude.errors import RequestError
from magnitude.feedback.timeline import Timeline, timeline_of
from magnitude.intake.context import context_of
from magnitude.intake.query import check_known, limit_of
from magnitude.intake.replies import json_reply

DEFAULT_SINCE_S = 3600.0
DEFAULT_LIMIT = 500


async def timeline(request: Request) -> Response:
    """`?since_s=3600` seconds back, `?limit=N` decisions and as many tasks at most, `?model=NAME` of one model."""
    check_known(request, "since_s", "limit", "model")
    since_s = _seconds(request.query_params.get("since_s", ""))
    limit = limit_of(request, DEFAULT_LIMIT)
    store = context_of(request).records
    found = Timeline(since_s=since_s, decisions=[], lanes=[], tasks=[])
    if store is not None:
        history = await store.history(since_s, limit, request.query_params.get("model", ""))
        found = timeline_of(history, since_s)
    persistence = "off" if store is None or store.off else "on"
    return json_reply({"object": "timeline", "persistence": persistence, **msgspec.structs.asdict(found)})


def _seconds(text: str) -> float:
    try:
        seconds = float(text) if text else DEFAULT_SINCE_S
    except ValueError:
        seconds = math.nan
    if not (0 < seconds < math.inf):
        raise RequestError("since_s must be a number of seconds above 0", param="since_s")
    return seconds
