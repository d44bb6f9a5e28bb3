"""`/v1/magnitude/reserve`: a client says that requests are coming, and room is kept for them."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import Response

from magnitude.intake.body import read_json
from magnitude.intake.context import context_of, passage_of, principal_of
from magnitude.intake.fields import Fields
from magnitude.intake.replies import json_reply
from magnitude.intake.terms import terms_of

MAX_REQUESTS = 1024  # as KV slots can be configured at most (kv.slots)
# Longer ones are units mixed up. How long room is really held is the schedule's to say, and the answer tells it.
MAX_HOLD_S = 3600.0
_DEFAULT_HOLD_S = 30.0  # a batch of agents that starts together is there within seconds


class ReserveRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    requests: int
    hold_s: float


def parse_reserve(data: dict[str, Any]) -> ReserveRequest:
    """Check a request to reserve. Raises `RequestError` naming the field that is wrong."""
    fields = Fields(data)
    requests = fields.integer("requests", low=1, high=MAX_REQUESTS)
    if requests is None:
        raise fields.wrong("requests", "is missing", hint="Say how many requests are coming.")
    return ReserveRequest(
        model=fields.text("model", max_chars=256),
        requests=requests,
        hold_s=fields.number("hold_s", _DEFAULT_HOLD_S, low=0.001, high=MAX_HOLD_S),
    )


class Reserve(HTTPEndpoint):
    """A client has one reservation for each model; a new one takes the place of the old."""

    async def post(self, request: Request) -> Response:
        """Keep room. Less than what was asked for is no error: the answer says how much, and why."""
        context = context_of(request)
        wanted = parse_reserve(await read_json(request, context.settings.server))
        model = context.model_of_kind(wanted.model, "decoder", "a reservation")
        passage_of(request).notes["model"] = model.name
        priority = terms_of(request, task="reserve").priority
        kept = context.inference.reserve(
            principal_of(request).name, model.name, wanted.requests, wanted.hold_s, priority=priority
        )
        return json_reply(
            {
                "model": kept.model,
                "requests": wanted.requests,
                "granted": kept.granted,
                "expires_in_s": round(max(0.0, kept.until_s - context.clock()), 3),
                "reason": kept.reason or None,
            }
        )

    async def delete(self, request: Request) -> Response:
        """Give the room back; without a reservation nothing happens."""
        context = context_of(request)
        model = context.model_of_kind(request.query_params.get("model", ""), "decoder", "a reservation")
        released = context.inference.release(principal_of(request).name, model.name)
        return json_reply({"model": model.name, "released": released})
