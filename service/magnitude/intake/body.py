"""Reading a JSON request body within the limits."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from magnitude.config import ServerSettings
from magnitude.errors import Cancelled, RequestError, TooLarge

# JSON schemas of real tools stay below 20 levels.
MAX_DEPTH = 64
# So much of a body beyond the limit is read and thrown away, so that a client that sends first and reads later
# gets our answer and not a reset connection.
_DRAIN_BYTES = 8 * 1024 * 1024
_DRAIN_SECONDS = 2.0
_THREAD_FROM_BYTES = 256 * 1024  # decoding takes about a millisecond here; more must not hold up the loop


async def read_json(request: Request, server: ServerSettings) -> dict[str, Any]:
    """The request's body as a JSON object.

    Raises `TooLarge` (413), `RequestError` with the code `request_timeout` (408), `unsupported_media_type` (415) or
    `invalid_json` (400), and `Cancelled` when the client went away.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() not in ("", "identity"):
        raise RequestError(
            f"The content encoding {encoding[:40]} is not taken",
            hint="Send plain JSON.",
            param="Content-Encoding",
            code="unsupported_media_type",
        )
    try:
        async with asyncio.timeout(server.client_timeout_s):
            body = await _read(request, server.max_request_bytes)
    except TimeoutError:
        raise RequestError(
            f"The request did not arrive within {server.client_timeout_s:g} s",
            hint="Send it faster, or raise server.client_timeout_s.",
            code="request_timeout",
        ) from None
    except ClientDisconnect:
        raise Cancelled("The client went away while it sent its request") from None
    if len(body) < _THREAD_FROM_BYTES:
        return decode_object(body)
    return await asyncio.to_thread(decode_object, body)


def decode_object(body: bytes) -> dict[str, Any]:
    """`body` as a JSON object. Raises `RequestError` with the code `invalid_json`."""
    try:
        data = msgspec.json.decode(body)
    except RecursionError:
        raise _invalid(f"it is nested deeper than {MAX_DEPTH} levels") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise _invalid(str(error)) from None
    if not isinstance(data, dict):
        raise _invalid("it must be an object")
    if _deeper_than(data, MAX_DEPTH):
        raise _invalid(f"it is nested deeper than {MAX_DEPTH} levels")
    return data


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and len(declared) < 20 and int(declared) > limit:
        await _drain(request)
        raise _too_large(f"{declared} bytes", limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            await _drain(request)
            raise _too_large(f"more than {limit} bytes", limit)
    return bytes(body)


async def _drain(request: Request) -> None:
    left = _DRAIN_BYTES
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for chunk in request.stream():
                left -= len(chunk)
                if left < 0:
                    return
    except (TimeoutError, ClientDisconnect, RuntimeError):
        return


def _too_large(size: str, limit: int) -> TooLarge:
    return TooLarge(
        f"The request has {size}, at most {limit} are taken",
        hint="Send less at once, or raise server.max_request_bytes.",
    )


def _invalid(reason: str) -> RequestError:
    return RequestError(
        f"The request body is not usable JSON: {reason}", hint="Send one JSON object, in UTF-8.", code="invalid_json"
    )


def _deeper_than(value: Any, limit: int) -> bool:
    level: list[Any] = [value]
    for _ in range(limit + 1):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
