"""A client as agents are: it chats under its own API key, whole or streamed, and sees what an answer took."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import pytest
import yaml
from started_service import RunningService

PATH = "/v1/chat/completions"
CHAT = "smollm2-135m-instruct"
KEYS = ("first", "second")
# Without the ids that would end it, an answer goes on until its limit.
ENDLESS = {"0": -100, "2": -100}
PATIENCE_S = 120.0  # a test that waits so long has failed


def write_settings(home: Path, **settings: Any) -> None:
    """Configure a home whose API knows the clients `KEYS`.

    Without drafts, unless `engine` says otherwise: with a float KV cache verified tokens round differently, so that
    two equal requests may part where two tokens are close, and these tests compare whole texts.
    """
    settings["engine"] = {"speculation": "off", **settings.get("engine", {})}
    keys = [{"name": name, "sha256": hashlib.sha256(f"key-{name}".encode()).hexdigest()} for name in KEYS]
    settings["server"] = {"api_keys": keys, **settings.get("server", {})}
    (home / "magnitude.yaml").write_text(yaml.safe_dump(settings))


def link_models(home: Path, magnitude_home: Path) -> None:
    (home / "models").symlink_to(magnitude_home / "models")


def said(text: str, *, system: str = "") -> list[dict[str, str]]:
    opening = [{"role": "system", "content": system}] if system else []
    return [*opening, {"role": "user", "content": text}]


def instructions(topic: str, sentences: int = 12) -> str:
    """A system prompt that nobody else has, of about 13 tokens a sentence."""
    lines = (f"Rule {number} about {topic} says that the answer stays short." for number in range(sentences))
    return " ".join(lines)


def until(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not fact():
        if time.monotonic() > deadline:
            pytest.fail("what was waited for did not come about", pytrace=False)
        time.sleep(0.02)


class Answer:
    """The answer to one request that was not streamed."""

    def __init__(self, reply: httpx.Response) -> None:
        self.status = reply.status_code
        self.headers = reply.headers
        self.body = reply.json()

    @property
    def error(self) -> dict[str, Any]:
        return self.body["error"]

    @property
    def text(self) -> str:
        assert self.status == 200, self.body
        return self.body["choices"][0]["message"]["content"]

    @property
    def reason(self) -> str:
        return self.body["choices"][0]["finish_reason"]

    @property
    def prompt_tokens(self) -> int:
        return self.body["usage"]["prompt_tokens"]

    @property
    def completion_tokens(self) -> int:
        return self.body["usage"]["completion_tokens"]

    @property
    def cached_tokens(self) -> int:
        assert self.status == 200, self.body
        return self.body["usage"]["prompt_tokens_details"]["cached_tokens"]


class Stream:
    """A streamed answer that is read in a thread. Leaving the block closes the connection, as a client that goes."""

    def __init__(self, port: int, headers: dict[str, str], body: dict[str, Any]) -> None:
        self.pieces: list[str] = []
        self.cost: dict[str, Any] = {}
        self.reason = ""
        self.error: dict[str, Any] = {}
        self._left = False
        self._connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        self._connection.request(
            "POST", PATH, json.dumps({**body, "stream": True}), {**headers, "Content-Type": "application/json"}
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.leave()

    @property
    def text(self) -> str:
        assert not self.error, self.error
        return "".join(self.pieces)

    def begun(self, pieces: int = 1) -> None:
        """Wait until so many pieces of text have come."""
        until(lambda: len(self.pieces) >= pieces or not self._thread.is_alive())
        assert len(self.pieces) >= pieces, self.error

    def whole(self) -> str:
        """Wait for the end; the text."""
        self._thread.join(PATIENCE_S)
        assert self.reason, f"the stream did not end: {self.error}"
        return self.text

    def leave(self) -> None:
        self._left = True
        with contextlib.suppress(OSError, AttributeError):  # it is over already
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)

    def _read(self) -> None:
        try:
            with contextlib.closing(self._connection), self._connection.getresponse() as reply:
                if reply.status != 200:
                    self.error = json.loads(reply.read())["error"]
                    return
                for line in reply:
                    if line.startswith(b"data: {"):
                        self._take(json.loads(line[6:]))
        except (OSError, HTTPException):
            if not self._left:
                raise

    def _take(self, event: dict[str, Any]) -> None:
        self.error = event.get("error", self.error)
        self.cost = event.get("magnitude", self.cost)
        for choice in event.get("choices", []):
            self.reason = choice["finish_reason"] or self.reason
            if text := choice["delta"].get("content"):
                self.pieces.append(text)


class Agent:
    """One API key of a service. Keyword arguments of `chat` and `stream` are fields of the body."""

    def __init__(self, service: RunningService, key: str) -> None:
        self._port = service.port
        self._url = service.url + PATH
        self.authorization = {"Authorization": f"Bearer key-{key}"}

    def chat(
        self,
        messages: list[dict[str, str]],
        *,
        headers: dict[str, str] | None = None,
        timeout: float = PATIENCE_S,
        **body: Any,
    ) -> Answer:
        body = {"messages": messages, "temperature": 0, "max_tokens": 16, **body}
        return Answer(httpx.post(self._url, headers=self.authorization | (headers or {}), json=body, timeout=timeout))

    def stream(self, messages: list[dict[str, str]], *, headers: dict[str, str] | None = None, **body: Any) -> Stream:
        body = {"messages": messages, "temperature": 0, "max_tokens": 16, **body}
        return Stream(self._port, self.authorization | (headers or {}), body)


def measured(service: RunningService, name: str, **labels: str) -> float:
    """A sample of the service's metrics; 0 when there is none."""
    with service.admin() as admin:
        lines = admin.get("/metrics").text.splitlines()
    total = 0.0
    for line in lines:
        if line.startswith(name + "{") and all(f'{label}="{value}"' in line for label, value in labels.items()):
            total += float(line.rsplit(" ", 1)[1])
    return total
