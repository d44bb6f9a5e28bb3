"""How an error becomes an HTTP answer, for both protocols that are spoken here.

OpenAI's envelope `{"error": {"message", "type", "param", "code", "hint"}}` everywhere, and the Open Inference
Protocol's `{"error": "..."}` below `/v2`. The `openai` client fills `code`, `param` and `type` of its exceptions
from the first shape only.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from magnitude.errors import (
    BudgetExceeded,
    Cancelled,
    ConfigError,
    DeadlineExceeded,
    EngineError,
    EngineNotReady,
    Forbidden,
    MagnitudeError,
    ModelError,
    ModelNotFound,
    Overloaded,
    Quarantined,
    RequestError,
    TooLarge,
    Unauthorized,
)

# Looked up along the class's ancestors, so the nearest entry wins.
STATUS: dict[type[MagnitudeError], int] = {
    MagnitudeError: 500,
    ConfigError: 409,  # the files on the disk are what the request is in conflict with
    RequestError: 400,
    ModelNotFound: 404,
    Unauthorized: 401,
    Forbidden: 403,
    TooLarge: 413,
    Overloaded: 429,
    DeadlineExceeded: 504,
    Cancelled: 499,  # nobody is there to read it; the log and the metrics show it
    ModelError: 500,
    EngineError: 500,
    EngineNotReady: 503,
    # Not a 5xx: clients send those again by themselves.
    Quarantined: 422,
    BudgetExceeded: 503,
}

# Codes whose status differs from that of their class.
STATUS_OF_CODE: dict[str, int] = {
    "request_timeout": 408,
    "method_not_allowed": 405,
    "not_found": 404,
    "unsupported_media_type": 415,
    "too_many_connections": 503,
    "engine_timeout": 504,
    "reload_unavailable": 501,
    "strategy_unavailable": 501,
    "storage_refused": 507,
    "binding_mismatch": 409,
}

_TYPE_OF_STATUS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
# For errors whose message already says what is wrong with a field, and what would be right.
_FIELDS_HINT = "What each route takes is described at /openapi.json."
_RETRY_AFTER_S = 1.0  # an engine is back within about a second (process start and weights mapped again)
_CLOSING = frozenset({408, 413})  # the rest of the request is not read, so the connection cannot go on


def status_of(error: MagnitudeError) -> int:
    """HTTP status for `error`."""
    if error.code in STATUS_OF_CODE:
        return STATUS_OF_CODE[error.code]
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def error_body(error: MagnitudeError) -> dict[str, Any]:
    """The envelope of the OpenAI API; also what a stream sends when it breaks.

    Beyond its fields: `queue_position` of a request that the queue had no room for, and `done`, what was done of one
    whose deadline passed.
    """
    status = status_of(error)
    kind = _TYPE_OF_STATUS.get(status, "invalid_request_error" if status < 500 else "server_error")
    body: dict[str, Any] = {
        "message": error.message,
        "type": kind,
        "param": error.param,
        "code": error.code,
        "hint": error.hint or (_FIELDS_HINT if isinstance(error, RequestError) else None),
    }
    if isinstance(error, Overloaded) and error.position is not None:
        body["queue_position"] = error.position
    if isinstance(error, DeadlineExceeded):
        body["done"] = {
            "prompt_tokens": error.prompt_tokens,
            "completion_tokens": error.new_tokens,
            "text": error.text,
        }
    return {"error": body}


def error_response(error: MagnitudeError, path: str) -> Response:
    """The whole answer for `error` on a request for `path`."""
    status = status_of(error)
    body: dict[str, Any] = {"error": str(error)} if is_open_inference(path) else error_body(error)
    headers = {}
    if status in (429, 503):
        wait_s = error.retry_after_s if isinstance(error, Overloaded | EngineNotReady) else _RETRY_AFTER_S
        headers["Retry-After"] = str(max(1, math.ceil(wait_s)))
    if isinstance(error, Overloaded) and error.position is not None:
        headers["X-Magnitude-Queue-Position"] = str(error.position)
    if isinstance(error, DeadlineExceeded):
        # The openai client sends every 5xx again by itself, unless told not to: whoever set a deadline has gone on.
        headers["X-Should-Retry"] = "false"
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in _CLOSING:
        headers["Connection"] = "close"
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def from_http_exception(error: HTTPException, path: str, method: str) -> MagnitudeError:
    """The same as a `MagnitudeError`: what the router itself refuses (no such route, wrong method)."""
    if error.status_code == 404:
        return RequestError(
            f"There is no route {path}", hint="The routes are listed at /openapi.json.", code="not_found"
        )
    if error.status_code == 405:
        return RequestError(
            f"{path} does not take {method}",
            hint="The routes are listed at /openapi.json.",
            code="method_not_allowed",
        )
    return RequestError(str(error.detail), code="http_error")


def internal_error() -> MagnitudeError:
    """What a client is told about a fault of ours: that it is ours, and where to look. No internals."""
    return MagnitudeError(
        "The service failed on this request",
        hint="The log has the details under the request id in the X-Request-Id header.",
    )


def is_open_inference(path: str) -> bool:
    return path == "/v2" or path.startswith("/v2/")
