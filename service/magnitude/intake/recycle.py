"""`POST /v1/magnitude/recycle`: replace the engine, without anybody losing a token."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from magnitude.intake.body import read_json
from magnitude.intake.context import context_of
from magnitude.intake.fields import Fields
from magnitude.intake.replies import json_reply

MAX_REASON_CHARS = 200  # it stands in a log line


async def recycle(request: Request) -> Response:
    """`reason` goes to the log. Answers once the next engine serves."""
    context = context_of(request)
    fields = Fields(await read_json(request, context.settings.server))
    reason = fields.text("reason", max_chars=MAX_REASON_CHARS) or "no reason given"
    return json_reply(await context.inference.recycle(f"on request: {reason}"))
