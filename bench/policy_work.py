"""A load that changes: phases of different work, some of them while half of the processor is gone. The same seed asks
the same things in the same order, whoever serves them."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from bench.chat import COLD, chat
from bench.greenhouse import Agent
from bench.service_process import ServiceFailed, post

Kind = Literal["short", "long", "agents", "embeddings"]
Share = Literal["whole", "half"]
SHARES: dict[Share, float] = {"whole": 1.0, "half": 0.5}

WORDS = (
    "river",
    "stone",
    "window",
    "garden",
    "letter",
    "morning",
    "engine",
    "bridge",
    "winter",
    "paper",
    "circle",
    "silver",
    "market",
    "corner",
    "station",
    "harbour",
    "ladder",
    "basket",
    "candle",
    "mirror",
    "shadow",
    "forest",
    "ticket",
    "button",
    "pocket",
    "island",
    "anchor",
    "copper",
    "marble",
    "blanket",
)
# Tokens are about words here: one of these is one or two of the embedded models' tokens.
SHORT_WORDS, SHORT_ANSWER = 12, 32
LONG_WORDS, LONG_ANSWER = 400, 4
TEXTS, TEXT_WORDS = 8, 24


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """`clients` at once, each asking `requests` things one after the other. `share`: of the processor."""

    kind: Kind
    share: Share
    clients: int = 1
    requests: int = 1

    @property
    def name(self) -> str:
        clients = f" x{self.clients}" if self.clients > 1 else ""
        return f"{self.kind}{clients}, {self.share} CPU"


def phases(scale: float = 1.0) -> tuple[Phase, ...]:
    """Short and long prompts, one to four agents, embeddings in between; in the middle with half of the processor.
    At `scale` 1 about half a minute on two cores with the embedded models."""

    def times(requests: int) -> int:
        return max(1, round(requests * scale))

    return (
        Phase(kind="short", share="whole", requests=times(5)),
        Phase(kind="long", share="whole", requests=times(3)),
        Phase(kind="agents", share="whole", clients=2, requests=times(3)),
        Phase(kind="embeddings", share="whole", clients=2, requests=times(8)),
        Phase(kind="short", share="half", requests=times(5)),
        Phase(kind="agents", share="half", clients=2, requests=times(2)),
        Phase(kind="long", share="half", requests=times(1)),
        Phase(kind="embeddings", share="half", clients=2, requests=times(5)),
        Phase(kind="agents", share="whole", clients=4, requests=times(3)),
        Phase(kind="agents", share="whole", clients=1, requests=times(4)),
    )


class PhaseRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a phase took from its first request to its last answer, and each of its requests alone; `tokens` are
    those of prompts (but for what was in the KV cache) and answers, and of texts."""

    phase: str
    seconds: float
    request_s: tuple[float, ...]
    tokens: int


Client = Callable[[int], "tuple[float, int]"]


class Work:
    """What the clients of a load ask. `run` sets names of conversations apart; what is said goes by `seed` alone."""

    def __init__(self, port: int, *, seed: int, run: str, end_ids: tuple[int, ...], embedder: str) -> None:
        self._port = port
        self._seed = seed
        self._run = run
        self._bias = {str(end): -100 for end in end_ids}
        self._end_ids = end_ids
        self._embedder = embedder

    def warm_up(self) -> None:
        """A short answer and a text: what comes first after a change pays for it."""
        self._ask("Hello", 4)
        self._embed(random.Random(self._seed))

    def do(self, at: int, phase: Phase) -> PhaseRun:
        """The phase with that place in the load. Raises `ServiceFailed`."""
        times: list[float] = []
        tokens: list[int] = []
        failures: list[Exception] = []
        clients = [self._client(phase, f"{self._seed}-{at}-{number}") for number in range(phase.clients)]

        def live(ask: Client) -> None:
            try:
                for request in range(phase.requests):
                    seconds, count = ask(request)
                    times.append(seconds)
                    tokens.append(count)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=live, args=(client,), daemon=True) for client in clients]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - begin
        if failures:
            raise ServiceFailed(f"{phase.name}: {failures[0]}") from failures[0]
        return PhaseRun(phase=phase.name, seconds=seconds, request_s=tuple(times), tokens=sum(tokens))

    # --- inside ---

    def _client(self, phase: Phase, name: str) -> Client:
        chance = random.Random(name)
        if phase.kind == "embeddings":
            return lambda request: self._embed(chance)
        if phase.kind == "agents":
            return self._agent(name, chance)
        words, answer = (SHORT_WORDS, SHORT_ANSWER) if phase.kind == "short" else (LONG_WORDS, LONG_ANSWER)
        return lambda request: self._ask(said(chance, words), answer)

    def _ask(self, text: str, answer: int) -> tuple[float, int]:
        body = {
            "model": "default",
            "messages": [{"role": "user", "content": text}],
            "max_tokens": answer,
            "temperature": 0,
            "logit_bias": self._bias,
        }
        reply = chat(self._port, body, COLD)
        return reply.wall_s, reply.recomputed_tokens + reply.new_tokens

    def _agent(self, name: str, chance: random.Random) -> Client:
        agent = Agent(chance.randint(1, 99), chance, self._end_ids)

        def turn(request: int) -> tuple[float, int]:
            body = {**agent.next_body(), "temperature": 0}
            reply = chat(self._port, body, {"X-Magnitude-Conversation": f"{self._run}-{name}-{agent.conversation}"})
            agent.answered(reply)
            return reply.wall_s, reply.recomputed_tokens + reply.new_tokens

        return turn

    def _embed(self, chance: random.Random) -> tuple[float, int]:
        body = {"model": self._embedder, "input": [said(chance, TEXT_WORDS) for _ in range(TEXTS)]}
        begin = time.perf_counter()
        try:
            status, answer = post(self._port, "/v1/embeddings", json.dumps(body).encode())
        except OSError as error:
            raise ServiceFailed(f"/v1/embeddings: {error!r}") from error
        if status != 200:
            raise ServiceFailed(f"/v1/embeddings answers {status}: {answer[:300]!r}")
        usage: dict[str, Any] = json.loads(answer)["usage"]
        return time.perf_counter() - begin, int(usage["prompt_tokens"])


def said(chance: random.Random, words: int) -> str:
    """So many words, drawn."""
    return " ".join(chance.choice(WORDS) for _ in range(words))
