"""`/v1/magnitude/records`: what became of the last tasks. Admin only: it tells how much everybody does."""

from __future__ import annotations

from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from magnitude.errors import RequestError
from magnitude.feedback.records import FAILURES, OUTCOMES, Outcome
from magnitude.intake.context import context_of
from magnitude.intake.query import check_known, limit_of
from magnitude.intake.replies import json_reply

DEFAULT_LIMIT = 50


async def records(request: Request) -> Response:
    """The newest first. `?outcome=killed,failed` only those, `?outcome=failures` all that went wrong; `?limit=N`."""
    check_known(request, "outcome", "limit")
    outcomes = _outcomes(request.query_params.get("outcome", ""))
    limit = limit_of(request, DEFAULT_LIMIT)
    store = context_of(request).records
    if store is None:
        return json_reply({"object": "list", "data": [], "counts": {}, "persistence": "off"})
    return json_reply(
        {
            "object": "list",
            "data": await store.recent(limit, outcomes),
            "counts": await store.counts(),
            "persistence": "off" if store.off else "on",
        }
    )


def _outcomes(text: str) -> tuple[Outcome, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["failures"]:
        return FAILURES
    for name in names:
        if name not in OUTCOMES:
            raise RequestError(
                f"The outcome {name[:40]!r} is not known",
                hint=f"Known: {', '.join(OUTCOMES)}, or failures.",
                param="outcome",
            )
    return tuple(cast(Outcome, name) for name in names)
