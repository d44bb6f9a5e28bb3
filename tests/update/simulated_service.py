"""A service in simulated time: it starts, fails, infers or does not, as a test has it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from magnitude.cli.client import ServiceRefused, ServiceUnreachable
from magnitude.update.boot_check import BootReport, Surroundings, check_boot


class SimulatedService:
    """`starts_s` are the moments at which a service starts; it is ready `load_s` later. `engine_starts_s` are those
    of further engines. `infers` tells for a moment whether it answers."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.starts_s: list[float] = [1000.0]
        self.load_s = 10.0
        self.engine_starts_s: list[float] = []
        self.infers: Callable[[float], bool] = lambda now_s: True
        self.token = " lazy"
        self.vector = [0.6, 0.8]
        self.persistence = "on"
        self.served = [{"id": "chat", "kind": "decoder"}, {"id": "embed", "kind": "embedder"}]
        self.inferred_s: list[float] = []
        self.told: list[str] = []
        self.untold: set[str] = set()  # names that are missing in what it says of itself

    # --- what the check sees ---

    @contextlib.contextmanager
    def connect(self) -> Iterator[SimulatedService]:
        if self._started_s is None:
            raise ServiceUnreachable("no such socket")
        yield self

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        ready = self._uptime_s >= self.load_s
        said = {
            "engine_restarts": sum(at_s <= self.now_s for at_s in self.engine_starts_s),
            "persistence": self.persistence,
            "reasons": [] if ready else ["engine loading"],
        }
        return ready, {name: value for name, value in said.items() if name not in self.untold}

    def get(self, path: str) -> Any:
        if path == "/healthz":
            said = {"status": "ok", "uptime_s": round(self._uptime_s, 1)}
            return {name: value for name, value in said.items() if name not in self.untold}
        assert path == "/v1/models"
        return {"object": "list", "data": self.served}

    def post(self, path: str, body: Any) -> Any:
        self.now_s += 0.5
        if not self.infers(self.now_s):
            raise ServiceRefused(503, "the engine was lost", code="engine_error")
        self.inferred_s.append(self.now_s)
        if path == "/v1/embeddings":
            return {"data": [{"embedding": self.vector}]}
        tokens = [self.token] * body["max_tokens"]
        return {"choices": [{"logprobs": {"tokens": tokens}}], "usage": {"completion_tokens": len(tokens)}}

    # --- what a test asks ---

    def checked(self, within_s: float = 180.0, steady_s: float = 60.0) -> BootReport:
        around = Surroundings(
            connect=self.connect,
            models={},
            clock=lambda: self.now_s,
            sleep=self._sleep,
            steady_s=steady_s,
            told=self.told.append,
        )
        return check_boot(around, within_s=within_s)

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds

    @property
    def _started_s(self) -> float | None:
        return max((at_s for at_s in self.starts_s if at_s <= self.now_s), default=None)

    @property
    def _uptime_s(self) -> float:
        assert self._started_s is not None
        return self.now_s - self._started_s
