"""A chat client for measurements: one request, the answer as a client would send it back, and where the time went."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from bench.service_process import ServiceFailed

PATH = "/v1/chat/completions"
# What `X-Magnitude-Keep: no` makes of a request: it is computed from its first token, and nothing of it stays.
COLD = {"X-Magnitude-Keep": "no"}
TIMING = re.compile(r"(\w+);dur=([0-9.]+)")


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. `message` is the assistant's, ready to be sent back. `wall_s` is the client's time from before the
    connection to the end of the answer; the other times are the service's own."""

    message: dict[str, Any]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    wall_s: float
    queue_s: float
    prefill_s: float
    decode_s: float
    total_s: float
    batch: float = 0.0

    @property
    def ttft_s(self) -> float:
        """Time to the first token, on the client's clock: all but the decode steps behind it. (What a client *sees*
        first can come later: the head of a tool call is several tokens long before it can be told from text.)"""
        return self.wall_s - self.decode_s

    @property
    def compute_s(self) -> float:
        """Time in a compute slot."""
        return self.prefill_s + self.decode_s

    @property
    def recomputed_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def before_prefill_s(self) -> float:
        """From the request's arrival in the service to the first prefill step."""
        return self.total_s - self.compute_s


def chat(port: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Reply:
    """Ask and wait for the whole answer. Raises `ServiceFailed` when there is none."""
    begin = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request("POST", PATH, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        data = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ServiceFailed(f"{PATH}: {error!r}") from error
    finally:
        connection.close()
    wall_s = time.perf_counter() - begin
    if response.status != 200:
        raise ServiceFailed(f"{PATH} answers {response.status}: {data[:500]!r}")
    return read_reply(data, response.getheaders(), wall_s)


def read_reply(data: bytes, headers: Iterable[tuple[str, str]], wall_s: float) -> Reply:
    """The reply in the body and headers of a whole answer."""
    named = {name.lower(): value for name, value in headers}
    answer = json.loads(data)
    times_s = {name: float(ms) / 1000 for name, ms in TIMING.findall(named["server-timing"])}
    choice, usage = answer["choices"][0], answer["usage"]
    return Reply(
        message=as_history(choice["message"]),
        finish_reason=choice["finish_reason"],
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        new_tokens=usage["completion_tokens"],
        wall_s=wall_s,
        queue_s=times_s["queue"],
        prefill_s=times_s["prefill"],
        decode_s=times_s["decode"],
        total_s=times_s["total"],
        batch=float(named.get("x-magnitude-batch", 0)),
    )


def as_history(message: Mapping[str, Any]) -> dict[str, Any]:
    """The assistant's message as clients put it into the history: role, content and calls, as they came."""
    kept = {"role": "assistant", "content": message.get("content")}
    if message.get("tool_calls"):
        kept["tool_calls"] = message["tool_calls"]
    return kept
