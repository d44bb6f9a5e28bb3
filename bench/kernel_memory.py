"""Memory of an engine that has loaded a model by its kernel plan, or by its serving graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import msgspec

from bench.memory import MemoryUse, read_memory
from bench.service_process import running_service

# Conversations that stay in memory, and what they take together: 36 tokens and up to 400 each.
CONVERSATIONS, NEW_TOKENS = 4, 400


class EngineMemory(msgspec.Struct, frozen=True, kw_only=True):
    """`graph`: the setting `engine.graph`. `packed_bytes`: mapped packed weights, which are among the other files of
    `memory`."""

    graph: str
    memory: MemoryUse
    packed_bytes: int


def engine_memory(model: Path, graph: str) -> EngineMemory:
    """Of the engine of a service that has nothing but the model in the folder `model`, after some conversations.
    Raises `ServiceFailed`, `httpx.HTTPError`."""
    settings: dict[str, dict[str, Any]] = {
        "engine": {"graph": graph, "self_optimize": False},
        "models": {"aliases": {"default": model.name}, "load": []},
    }
    with running_service(model.parent, settings) as service:
        for number in range(CONVERSATIONS):
            body = {
                "messages": [{"role": "user", "content": f"Write a long story about {number + 2} sailors."}],
                "max_tokens": NEW_TOKENS,
            }
            address = f"http://127.0.0.1:{service.port}/v1/chat/completions"
            httpx.post(address, json=body, timeout=300).raise_for_status()
        pid = service.engine_pid()
        assert pid is not None, "it has just answered"
        packed = read_memory(pid, service.home).weights_bytes
        return EngineMemory(graph=graph, memory=read_memory(pid, model), packed_bytes=packed)
