"""Plain JSON answers."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response


def json_reply(body: Any, headers: dict[str, str] | None = None, *, status: int = 200) -> Response:
    """`body` as JSON. Numbers that JSON cannot write (NaN, infinity) become null."""
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")
