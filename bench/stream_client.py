"""A client of OpenAI-style completion streams that costs little beside what it measures.

While streams run it only notes when bytes came; what they say is looked at afterwards.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from bench.service_process import ServiceFailed

PATH = "/v1/completions"
TIMEOUT_S = 900.0

# When bytes came (monotonic), and which.
Reads = list[tuple[float, bytes]]


class Streamed(msgspec.Struct, frozen=True):
    """One streamed answer: when the request was sent, when each piece of text came, and tokens and text of it all.
    Times are monotonic."""

    sent_s: float
    arrivals_s: tuple[float, ...]
    tokens: int
    text: str = ""

    @property
    def first_s(self) -> float:
        return self.arrivals_s[0]

    @property
    def last_s(self) -> float:
        return self.arrivals_s[-1]

    def gaps_ms(self, from_s: float, to_s: float) -> list[float]:
        """Times between neighbouring pieces that came from `from_s` to `to_s`: a piece is a token, nearly always
        (a character may take several)."""
        within = [at for at in self.arrivals_s if from_s <= at <= to_s]
        return [(after - before) * 1000 for before, after in pairwise(within)]


class Stream:
    """A request under way in a thread of its own. `body` gets what streaming needs."""

    def __init__(self, port: int, body: dict[str, Any]) -> None:
        self._port = port
        self._body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        self._reads: Reads = []
        self._error = ""
        self._closing = False
        self._first = threading.Event()
        self._sent_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def reads(self) -> int:
        """How often something came so far: about once a token."""
        return len(self._reads)

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def wait_first(self) -> None:
        """Until some text is there. Raises `ServiceFailed` when it ends without."""
        if not self._first.wait(TIMEOUT_S):
            raise ServiceFailed("a stream has no first token")
        if self._error:
            raise ServiceFailed(self._error)

    def result(self) -> Streamed:
        """The whole answer, once it is there. Raises `ServiceFailed`."""
        self._thread.join(TIMEOUT_S)
        if self._thread.is_alive():
            raise ServiceFailed("a stream does not end")
        if self._error:
            raise ServiceFailed(self._error)
        return read_stream(self._sent_s, self._reads)

    def abandon(self) -> Streamed:
        """Hang up, as a client that has enough; what came until then."""
        self._closing = True
        self._thread.join(TIMEOUT_S)
        if self._error:
            raise ServiceFailed(self._error)
        return read_stream(self._sent_s, self._reads, whole=False)

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        try:
            body = json.dumps(self._body).encode()
            self._sent_s = time.monotonic()
            connection.request("POST", PATH, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                self._error = f"{PATH} answers {response.status}: {response.read()[:500]!r}"
                return
            while not self._closing and (data := response.read1()):
                self._reads.append((time.monotonic(), data))
                if not self._first.is_set() and b'"text":"' in data and b'"text":""' not in data:
                    self._first.set()
        except (OSError, http.client.HTTPException) as error:
            self._error = f"a stream broke: {type(error).__name__}: {error}"
        finally:
            connection.close()
            self._first.set()


def read_stream(sent_s: float, reads: Iterable[tuple[float, bytes]], *, whole: bool = True) -> Streamed:
    """What the events of one stream say. Raises `ServiceFailed` for an error among them, for a stream without text,
    and for a `whole` one without usage; otherwise every piece counts as a token."""
    arrivals: list[float] = []
    text = ""
    tokens = 0
    rest = b""
    for at_s, data in reads:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise ServiceFailed(f"a stream ends with an error: {chunk['error']}")
            piece = "".join(choice.get("text") or "" for choice in chunk.get("choices", []))
            if piece:
                arrivals.append(at_s)
                text += piece
            if usage := chunk.get("usage"):
                tokens = int(usage["completion_tokens"])
    if not arrivals or (whole and not tokens):
        raise ServiceFailed("a stream came without text or without its usage")
    return Streamed(sent_s, tuple(arrivals), tokens or len(arrivals), text)


def run_together(port: int, bodies: Sequence[dict[str, Any]]) -> list[Streamed]:
    """All answers, of requests that are sent at once."""
    return [stream.result() for stream in [Stream(port, body) for body in bodies]]


def joint_rate(answers: Sequence[Streamed], least_tokens: int) -> float:
    """Tokens a second of all streams together, while all of them decode: from the last first piece to the first
    last one. Raises `ServiceFailed` when one of them gets fewer than `least_tokens` in that time."""
    begin_s = max(answer.first_s for answer in answers)
    end_s = min(answer.last_s for answer in answers)
    each = [
        sum(begin_s < at <= end_s for at in answer.arrivals_s) * answer.tokens / len(answer.arrivals_s)
        for answer in answers
    ]
    if min(each) < least_tokens:
        raise ServiceFailed(
            f"only {min(each):.0f} tokens came while all {len(answers)} streams decoded: one ended early, or they "
            "did not run together"
        )
    return sum(each) / (end_s - begin_s)
