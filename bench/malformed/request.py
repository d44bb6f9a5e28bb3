"""One malformed request, and the valid requests that are spoiled to make it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Literal

import msgspec

# read: send all, wait for an answer. leave: send all, close without reading. hold: send, keep the connection open
# and silent for a while, then close.
Ending = Literal["read", "leave", "hold"]

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
ROUTES = (CHAT, COMPLETIONS, EMBEDDINGS, "/v1/rerank", "/v2/models/default/infer")


class MalformedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Raw bytes for one connection, and how the client behaves after sending them."""

    kind: str
    payload: bytes
    ending: Ending = "read"


Made = tuple[bytes, Ending]
Maker = Callable[[random.Random], Made]


def valid_body(source: random.Random, route: str) -> dict[str, Any]:
    """A body that would do, as the start for spoiling it. Short answers, in case one survives the spoiling."""
    text = " ".join(source.choice(("hello", "edge", "board", "heat", "token")) for _ in range(source.randint(1, 6)))
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"model": "default", "messages": [{"role": "user", "content": text}], "max_tokens": 2},
        COMPLETIONS: {"model": "default", "prompt": text, "max_tokens": 2},
        EMBEDDINGS: {"model": "all-minilm-l6-v2", "input": text},
        "/v1/rerank": {"model": "all-minilm-l6-v2", "query": text, "documents": [text, "other"]},
        "/v2/models/default/infer": {
            "inputs": [{"name": "input_ids", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]}]
        },
    }
    return bodies[route]


def http(
    body: bytes,
    route: str = CHAT,
    *,
    method: str = "POST",
    headers: tuple[tuple[str, str], ...] = (),
    length: str | None = None,
) -> bytes:
    """A request with a correct frame around `body`, unless `length` claims another size."""
    lines = [
        f"{method} {route} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body) if length is None else length}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body


def encoded(source: random.Random) -> tuple[str, bytes]:
    route = source.choice(ROUTES)
    return route, json.dumps(valid_body(source, route)).encode()
