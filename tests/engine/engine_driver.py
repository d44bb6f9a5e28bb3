"""Drives a real engine process over a real socketpair, one message at a time."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import weakref
from collections import deque
from typing import Any, Protocol, TypeVar

import magnitude
from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.message import Message
from magnitude.engine.protocol import (
    PROTOCOL_VERSION,
    CancelRequest,
    Failed,
    Finished,
    Generate,
    GetStats,
    Heartbeat,
    Hello,
    Loaded,
    LoadModel,
    Pace,
    SamplerSettings,
    Shutdown,
    Stats,
    Steps,
    Tokens,
)
from magnitude.engine.wire import FrameReader, encode_frame
from magnitude.models.description import ModelDescription

M = TypeVar("M", bound=Message)
PATIENCE_S = 60.0  # a test that waits so long has failed


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class KvFile:
    """The service's memfd, and what tests of one process `keep` over it: closed with it, the last one first. The
    descriptor is closed with its last reference at the latest: hundreds of tests make one."""

    def __init__(self, layout: KvLayout) -> None:
        self.layout = layout
        self.fd = os.memfd_create("kv")
        os.ftruncate(self.fd, layout.total_bytes)
        self._kept = contextlib.ExitStack()
        self._close_fd = weakref.finalize(self, os.close, self.fd)

    def keep(self, over_it: C) -> C:
        self._kept.callback(over_it.close)
        return over_it

    def close(self) -> None:
        self._kept.close()
        self._close_fd()


class EngineDriver:
    """A context manager around one engine process."""

    def __init__(
        self, *, hello: bool = True, protocol_version: int = PROTOCOL_VERSION, options: tuple[str, ...] = ()
    ) -> None:
        from magnitude.engine.protocol import ToService

        self.sock, theirs = socket.socketpair()
        command = [sys.executable, "-m", "magnitude.engine", "--fd", str(theirs.fileno()), *options]
        self.process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        theirs.close()
        self.sock.settimeout(PATIENCE_S)
        self._reader: FrameReader[Any] = FrameReader(ToService)
        self._received: deque[Message] = deque()
        self._next_id = 0
        self.heartbeats: list[Heartbeat] = []
        self.steps: list[Steps] = []
        self.hello: Hello | None = None
        if hello:
            self.hello = self.wait(Hello)
            self.send(
                Hello(protocol_version=protocol_version, software_version=magnitude.__version__, pid=os.getpid())
            )

    def __enter__(self) -> EngineDriver:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.sock.close()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def send(self, message: Message, fd: int | None = None) -> None:
        frame = encode_frame(message)
        if fd is None:
            self.sock.sendall(frame)
            return
        sent = socket.send_fds(self.sock, [frame], [fd])
        self.sock.sendall(frame[sent:])

    def next(self) -> Message:
        """The next message that is no heartbeat and no report of steps. Raises `EOFError` when the engine is gone."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            while self._received:
                message = self._received.popleft()
                if isinstance(message, Heartbeat):
                    self.heartbeats.append(message)
                elif isinstance(message, Steps):
                    self.steps.append(message)
                else:
                    return message
            if time.monotonic() > deadline:
                raise TimeoutError("the engine says nothing but heartbeats")
            data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError
            self._received.extend(self._reader.feed(data))

    def wait(self, kind: type[M], request_id: int | None = None) -> M:
        """Read on until a message of that type (and request) comes; others are dropped, `Failed` is an error."""
        while True:
            message = self.next()
            ours = request_id is None or getattr(message, "request_id", None) == request_id
            if isinstance(message, kind) and ours:
                return message
            if isinstance(message, Failed) and ours:
                raise AssertionError(f"failed: {message}")

    def load(self, model: ModelDescription, kv: KvFile | None = None, threads: int = 1) -> Loaded:
        request_id = self.send_load(model, kv, threads)
        return self.wait(Loaded, request_id)

    def send_load(self, model: ModelDescription, kv: KvFile | None = None, threads: int = 1) -> int:
        request_id = self.new_id()
        layout = kv.layout if kv else None
        max_batch = layout.slots if layout else 1
        message = LoadModel(request_id=request_id, model=model, threads=threads, kv=layout, max_batch=max_batch)
        self.send(message, kv.fd if kv else None)
        return request_id

    def start(self, prompt: list[int], **fields: Any) -> int:
        """Send `Generate` with test defaults; returns its request id."""
        request_id = self.new_id()
        defaults: dict[str, Any] = {
            "model": "tiny",
            "slot": 0,
            "max_new_tokens": 8,
            "sampler": SamplerSettings(temperature=0.0),
        }
        self.send(Generate(request_id=request_id, prompt=prompt, **(defaults | fields)))
        return request_id

    def collect(self, request_id: int) -> tuple[list[int], Finished | Failed]:
        """The ids of a generation and how it ended."""
        ids: list[int] = []
        while True:
            message = self.next()
            if getattr(message, "request_id", None) != request_id:
                continue
            if isinstance(message, Tokens):
                ids += message.ids
            elif isinstance(message, (Finished, Failed)):
                return ids, message

    def generate(self, prompt: list[int], **fields: Any) -> tuple[list[int], Finished | Failed]:
        return self.collect(self.start(prompt, **fields))

    def stats(self) -> Stats:
        request_id = self.new_id()
        self.send(GetStats(request_id=request_id))
        return self.wait(Stats, request_id)

    def settle(self, *models: str) -> bool:
        """End what a test left open. False when the process is gone or is not in its first state."""
        try:
            for target in range(1, self._next_id + 1):
                self.send(CancelRequest(target=target))
            self.send(Pace(request_id=0, prefill=1.0, decode=1.0))
            probe = self.start([1], max_new_tokens=1)
            ids, _ = self.collect(probe)
            stats = self.stats()
        except (OSError, EOFError):
            return False
        return len(ids) == 1 and stats.open_requests == 0 and stats.models == models

    def shut_down(self) -> int:
        self.send(Shutdown())
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def log_text(self) -> str:
        """Everything it wrote to stderr; call after it has ended."""
        self.process.wait(PATIENCE_S)
        assert self.process.stderr is not None
        return self.process.stderr.read()
