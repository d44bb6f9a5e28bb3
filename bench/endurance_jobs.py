"""What the endurance run sends: all kinds of requests, and all ways to leave one. The same seed gives the same."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

Kind = Literal[
    "chat",
    "long chat",
    "completion",
    "embeddings",
    "tools",
    "json",
    "hard deadline",
    "soft deadline",
    "refused",
]
# Where the client leaves: with half of the head or of the body sent, when all is sent, some time later, or after the
# first bytes of the answer; `read` stays to the end.
Ending = Literal["read", "head", "body", "sent", "later", "answer"]

CHAT_MODEL = "default"
EMBEDDER = "all-minilm-l6-v2"

KINDS: dict[Kind, float] = {
    "chat": 34,
    "long chat": 4,
    "completion": 10,
    "embeddings": 18,
    "tools": 8,
    "json": 8,
    "hard deadline": 8,
    "soft deadline": 6,
    "refused": 4,
}
ENDINGS: dict[Ending, float] = {"read": 60, "head": 4, "body": 4, "sent": 8, "later": 14, "answer": 10}
# A hard deadline is missed or not; everything else that is valid is answered.
EXPECTED: dict[Kind, frozenset[int]] = {
    **dict.fromkeys(KINDS, frozenset({200})),
    "hard deadline": frozenset({200, 504}),
    "refused": frozenset({400}),
}
# A request is over within this on a quiet machine, mostly: whoever leaves by then leaves in every phase of it.
LONGEST_STAY_S = 0.8

SYSTEMS = (
    "You are a helpful assistant on a small board. Answer briefly.",
    "You write weather reports for sailors. Name wind, waves and sight, nothing else. Never use more than one line.",
    "You sort letters. Say to which of the departments sales, service or accounts a letter belongs.",
)
SUBJECTS = (
    "the harbour",
    "a broken fence",
    "rain",
    "an unpaid bill",
    "two lost keys",
    "the north wind",
    "bread",
    "fog",
)
SENTENCE = "The quick brown fox jumps over the lazy dog near the river bank. "
SCHEMA = {
    "type": "object",
    "properties": {"subject": {"type": "string", "maxLength": 12}, "urgent": {"type": "boolean"}},
    "required": ["subject", "urgent"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "file_letter", "description": "Files a letter.", "parameters": SCHEMA},
}


_T = TypeVar("_T")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One request and how its client behaves. `stay_s` counts from the last byte sent."""

    kind: Kind
    ending: Ending
    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    stay_s: float

    def payload(self) -> bytes:
        """The request as it goes over the connection."""
        body = json.dumps(self.body).encode()
        head = {"Host": "localhost", "Connection": "close", "Content-Type": "application/json", **self.headers}
        lines = [f"POST {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body

    def sent_bytes(self) -> int:
        """How much of the payload the client sends before it leaves, or waits."""
        payload = self.payload()
        head = payload.index(b"\r\n\r\n") + 4
        if self.ending == "head":
            return head // 2
        if self.ending == "body":
            return head + (len(payload) - head) // 2
        return len(payload)


def job(seed: int, number: int) -> Job:
    """The `number`-th request of a run."""
    # Each request has a generator of its own, so that it does not depend on which thread came first.
    draw = random.Random(f"{seed}.{number}")
    kind = _weighted(draw, KINDS)
    path, body = _request(draw, kind)
    return Job(
        kind=kind,
        ending=_weighted(draw, ENDINGS),
        path=path,
        body=body,
        headers=_headers(draw, kind),
        stay_s=draw.uniform(0, LONGEST_STAY_S),
    )


def _request(draw: random.Random, kind: Kind) -> tuple[str, dict[str, Any]]:
    if kind == "embeddings":
        texts = [f"{draw.choice(SUBJECTS)} {SENTENCE * draw.randint(0, 3)}" for _ in range(draw.randint(1, 4))]
        return "/v1/embeddings", {"model": EMBEDDER, "input": texts}
    if kind == "completion":
        prompt = f"A story about {draw.choice(SUBJECTS)}, number {draw.randint(1, 50)}:"
        return "/v1/completions", _sampling(draw, {"model": CHAT_MODEL, "prompt": prompt})
    question = f"A letter, number {draw.randint(1, 200)}, about {draw.choice(SUBJECTS)}."
    messages: list[dict[str, Any]] = [{"role": "system", "content": draw.choice(SYSTEMS)}]
    if kind == "long chat":
        question += " " + SENTENCE * draw.randint(10, 30)
    elif draw.random() < 0.3:  # a later turn, whose beginning others have sent as well
        messages += [
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": "Hello! How can I help?"},
        ]
    messages.append({"role": "user", "content": question})
    body: dict[str, Any] = {"model": CHAT_MODEL, "messages": messages}
    if kind == "tools":
        body |= {"tools": [TOOL], "tool_choice": draw.choice(("auto", "required")), "parallel_tool_calls": False}
    elif kind == "json":
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "letter", "schema": SCHEMA}}
    elif kind == "refused":
        body["messages"] = draw.choice(([], "Hello", [{"role": "nobody", "content": "Hello"}]))
    return "/v1/chat/completions", _sampling(draw, body)


def _sampling(draw: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    body |= {"max_tokens": draw.randint(4, 16), "temperature": draw.choice((0, 0.7)), "seed": draw.randint(0, 1000)}
    if draw.random() < 0.5:
        body["stream"] = True
    if draw.random() < 0.1:
        body["stop"] = ["."]
    return body


def _headers(draw: random.Random, kind: Kind) -> dict[str, str]:
    headers: dict[str, str] = {}
    if kind == "hard deadline":
        headers["X-Magnitude-Deadline-Ms"] = str(draw.choice((1, 50, 200, 1000)))
    elif kind == "soft deadline":
        headers |= {"X-Magnitude-Deadline-Ms": str(draw.choice((50, 300))), "X-Magnitude-Deadline-Mode": "soft"}
    if draw.random() < 0.3:
        headers["X-Magnitude-Priority"] = draw.choice(("interactive", "background"))
    if draw.random() < 0.15:
        headers["X-Magnitude-Keep"] = "no"
    if draw.random() < 0.2:
        headers["X-Magnitude-Conversation"] = f"c{draw.randint(1, 20)}"
    if draw.random() < 0.05:
        headers["X-Magnitude-Expect"] = "2"
    return headers


def _weighted(draw: random.Random, weights: Mapping[_T, float]) -> _T:
    return draw.choices(list(weights), list(weights.values()))[0]
