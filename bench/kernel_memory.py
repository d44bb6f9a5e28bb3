"""Memory of an engine that has loaded a model by its kernel plan, or by its serving graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import msgspec

from bench.memory import MemoryUse, read_memory
from bench.service_process import ServiceFailed, ServiceProcess, running_service

# Conversations that stay in memory, and what they take together: 36 tokens and up to 400 each.
CONVERSATIONS, NEW_TOKENS = 4, 400


class EngineMemory(msgspec.Struct, frozen=True, kw_only=True):
    """`graph`: the setting `engine.graph`. `first_bytes`: RSS after the very first start, before any request.
    `packed_bytes`: mapped packed weights, which are among the other files of `memory`."""

    graph: str
    first_bytes: int
    memory: MemoryUse
    packed_bytes: int


def engine_memory(model: Path, graph: str) -> EngineMemory:
    """Of the engine of a service that has the model in the folder `model`, which lies in a folder of its own, after
    some conversations. It is the second start, as all later ones are: the first one makes the file of packed weights.

    Raises `ServiceFailed`, `httpx.HTTPError`.
    """
    settings: dict[str, dict[str, Any]] = {"engine": {"graph": graph, "self_optimize": False}}
    with running_service(model.parent, settings) as service:
        first = read_memory(_engine_of(service), model).rss_bytes
        service.restart()
        for number in range(CONVERSATIONS):
            body = {
                "messages": [{"role": "user", "content": f"Write a long story about {number + 2} sailors."}],
                "max_tokens": NEW_TOKENS,
            }
            address = f"http://127.0.0.1:{service.port}/v1/chat/completions"
            httpx.post(address, json=body, timeout=300).raise_for_status()
        pid = _engine_of(service)
        packed = read_memory(pid, service.home).weights_bytes
        return EngineMemory(graph=graph, first_bytes=first, memory=read_memory(pid, model), packed_bytes=packed)


def _engine_of(service: ServiceProcess) -> int:
    pid = service.engine_pid()
    if pid is None:
        raise ServiceFailed(f"there is no engine:\n{service.log_tail()}")
    return pid
