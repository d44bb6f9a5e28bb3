"""A client whose requests can be watched while they run, and whose answers can be compared."""

from __future__ import annotations

import http.client
import json
import math
import threading
import time
from typing import Any, Literal

import msgspec

from bench.kill_requests import KillRequest

TIMEOUT_S = 300.0
# Vectors are computed with whatever other texts came at the same time, which may round differently.
VECTOR_TOLERANCE = 1e-4

# What a request is about, as far as its client can tell: nothing has come yet, something has, all but the last two
# tokens have; for answers that are not streamed nothing can be told.
Phase = Literal["prefill", "decode", "last token", "whole"]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a request. `error`: the service said that it failed, and how; `broken`: it said nothing, or
    nothing that can be understood."""

    text: str = ""
    reason: str = ""
    prompt_tokens: int = 0
    new_tokens: int = 0
    logprobs: tuple[Any, ...] = ()
    vectors: tuple[tuple[float, ...], ...] = ()
    recoveries: int = 0
    recomputed_tokens: int = 0
    error: str = ""
    broken: str = ""

    def same(self, other: Answer) -> bool:
        """Whether both say the same, whatever it took."""
        mine = msgspec.structs.replace(self, vectors=(), recoveries=0, recomputed_tokens=0)
        its = msgspec.structs.replace(other, vectors=(), recoveries=0, recomputed_tokens=0)
        pairs = zip(self.vectors, other.vectors, strict=False)
        near = all(math.dist(one, another) < VECTOR_TOLERANCE for one, another in pairs)
        return mine == its and len(self.vectors) == len(other.vectors) and near


class Ask:
    """A request under way; `run` is to be called in a thread of its own. `struck` are the phases in which an engine
    was lost while it was open."""

    def __init__(self, port: int, request: KillRequest) -> None:
        self.request = request
        self.sent_s: float | None = None
        self.pieces = 0
        self.struck: list[str] = []
        self._port = port

    @property
    def phase(self) -> Phase:
        if not self.request.streamed:
            return "whole"
        if not self.pieces:
            return "prefill"
        limit = self.request.limit
        return "last token" if limit and self.pieces >= limit - 2 else "decode"

    def run(self) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        request = self.request
        try:
            headers = {"Content-Type": "application/json", **request.headers}
            connection.request("POST", request.path, json.dumps(request.body), headers)
            self.sent_s = time.monotonic()
            response = connection.getresponse()
            if response.status != 200:
                return Answer(error=f"{response.status} {response.read()[:500].decode('utf-8', 'replace')}")
            if request.streamed:
                return self._streamed(response)
            return whole(json.loads(response.read()), {name.lower(): value for name, value in response.getheaders()})
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            return Answer(broken=f"{type(error).__name__}: {error}")
        finally:
            connection.close()

    def _streamed(self, response: http.client.HTTPResponse) -> Answer:
        events: list[dict[str, Any]] = []
        done = False
        for line in response:
            if line.startswith(b"data: {"):
                events.append(json.loads(line[6:]))
                if any(_said(choice) for choice in events[-1].get("choices", ())):
                    self.pieces += 1
            done = done or line.startswith(b"data: [DONE]")
        return streamed(events, done=done)


def _said(choice: dict[str, Any]) -> str:
    found = choice["delta"].get("content") if "delta" in choice else choice.get("text")
    return found or ""


def streamed(events: list[dict[str, Any]], *, done: bool) -> Answer:
    """The answer in a stream's events. Raises `KeyError` or `ValueError` for one that cannot be understood."""
    text, reason = "", ""
    logprobs: list[Any] = []
    usage: dict[str, Any] = {}
    cost: dict[str, Any] = {}
    for event in events:
        if "error" in event:
            return Answer(error=json.dumps(event["error"]))
        for choice in event.get("choices", ()):
            text += _said(choice)
            reason = choice["finish_reason"] or reason
            logprobs += _flat(choice.get("logprobs"))
        usage, cost = event.get("usage") or usage, event.get("magnitude", cost)
    if not (done and reason and usage):
        return Answer(broken="the stream ended without its end, and without an error")
    return Answer(
        text=text,
        reason=reason,
        prompt_tokens=usage["prompt_tokens"],
        new_tokens=usage["completion_tokens"],
        logprobs=tuple(logprobs),
        recoveries=cost["recoveries"],
        recomputed_tokens=cost["recomputed_tokens"],
    )


def whole(body: dict[str, Any], headers: dict[str, str]) -> Answer:
    """The answer in the body of one that was not streamed. Raises `KeyError` for one that cannot be understood."""
    if "data" in body:
        return Answer(
            reason="stop",
            prompt_tokens=body["usage"]["prompt_tokens"],
            vectors=tuple(tuple(item["embedding"]) for item in body["data"]),
        )
    choice = body["choices"][0]
    return Answer(
        text=choice["message"]["content"] if "message" in choice else choice["text"],
        reason=choice["finish_reason"],
        prompt_tokens=body["usage"]["prompt_tokens"],
        new_tokens=body["usage"]["completion_tokens"],
        logprobs=tuple(_flat(choice.get("logprobs"))),
        recoveries=int(headers.get("x-magnitude-recoveries", 0)),
        recomputed_tokens=int(headers.get("x-magnitude-recomputed-tokens", 0)),
    )


def _flat(logprobs: dict[str, Any] | None) -> list[Any]:
    """Token by token: its text, its log probability, the alternatives."""
    if not logprobs:
        return []
    return list(
        zip(
            logprobs["tokens"],
            logprobs["token_logprobs"],
            (tuple(sorted(top.items())) for top in logprobs["top_logprobs"]),
            strict=True,
        )
    )


class Watch:
    """The requests that are open. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[Ask] = set()
        self.done = 0

    def ask(self, port: int, request: KillRequest) -> tuple[Ask, Answer]:
        one = Ask(port, request)
        with self._lock:
            self._open.add(one)
        try:
            return one, one.run()
        finally:
            with self._lock:
                self._open.discard(one)
                self.done += 1

    def open(self) -> list[Ask]:
        with self._lock:
            return list(self._open)
