"""Malformed requests against a running service, with valid ones between them."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable
from http.client import HTTPException
from typing import Any

import msgspec

from bench.malformed import MalformedRequest
from bench.memory import open_files, read_memory
from bench.service_process import ServiceProcess, post, status_of

# A service that has not answered a complete malformed request by then counts as silent.
ANSWER_TIMEOUT_S = 20.0
# The service under assault cuts off unfinished requests after this, so that each costs the run little time. No half
# of the connection is shut down instead: asyncio takes that for a client that is gone, and would hide the answer.
CLIENT_TIMEOUT_S = 1.5
# Memory is to stay flat: further sessions that are tried, and twins that are profiled, map packed weights, which are
# no leak.
SERVICE_SETTINGS: dict[str, dict[str, Any]] = {
    "server": {"client_timeout_s": CLIENT_TIMEOUT_S},
    "policy": {"explore": "off", "profile_every": 0},
}
# Connections that are kept open half-sent; fewer than the service's limit of connections.
HELD_CONNECTIONS = 16
VALID_EVERY = 20
# The first part of a run fills caches and pools, so the first snapshot comes after it.
WARM_UP_SHARE = 0.1
# Several answers can come over one connection. A message that quotes a version is followed by no number.
STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9]{2}) ")
NO_ANSWER = "closed without an answer"
SILENT = "silent"


class ProcessSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One process at one moment, less the KV cache's pages."""

    pid: int
    rss_less_kv_bytes: int
    open_files: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    after_requests: int
    service: ProcessSnapshot
    engine: ProcessSnapshot | None


class AssaultResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `server_errors` and `failed_valid` say which request, and what was answered."""

    sent: int
    answers: dict[str, int]
    server_errors: list[str]
    silent: list[str]
    valid_sent: int
    failed_valid: list[str]
    engine_pids: list[int]
    service_alive: bool
    snapshots: list[Snapshot]

    @property
    def dead_processes(self) -> int:
        """The service, if it is gone, and engines that had to be replaced."""
        return (not self.service_alive) + max(0, len(self.engine_pids) - 1)


def assault(
    service: ServiceProcess,
    malformed: Iterable[MalformedRequest],
    count: int,
    progress: Callable[[int], None] = lambda _sent: None,
) -> AssaultResult:
    """Send `malformed` (`count` of them), a valid request after every 20, and three snapshots on the way."""
    held: deque[socket.socket] = deque()
    answers: Counter[str] = Counter()
    server_errors: list[str] = []
    silent: list[str] = []
    failed_valid: list[str] = []
    engine_pids: list[int] = []
    snapshots: list[Snapshot] = []
    snapshot_at = {max(1, int(count * WARM_UP_SHARE)), count // 2}
    valid_sent = sent = 0
    for request in malformed:
        answer = send(service.port, request, held)
        sent += 1
        answers[answer] += 1
        if answer.startswith("5"):
            server_errors.append(f"{request.kind}: {answer} for {request.payload[:300]!r}")
        elif answer == SILENT:
            silent.append(f"{request.kind}: {request.payload[:300]!r}")
        if sent % VALID_EVERY == 0:
            problem = send_valid(service.port, valid_sent)
            valid_sent += 1
            if problem:
                failed_valid.append(problem)
            engine = service.engine_pid()
            if engine is not None and engine not in engine_pids:
                engine_pids.append(engine)
            progress(sent)
        if sent in snapshot_at:
            snapshots.append(_snapshot(service, sent, held))
        if not service.alive:
            break
    _close_all(held)
    if service.alive:
        snapshots.append(_snapshot(service, sent, held))
    return AssaultResult(
        sent=sent,
        answers=dict(answers.most_common()),
        server_errors=server_errors,
        silent=silent,
        valid_sent=valid_sent,
        failed_valid=failed_valid,
        engine_pids=engine_pids,
        service_alive=service.alive,
        snapshots=snapshots,
    )


def send(port: int, request: MalformedRequest, held: deque[socket.socket]) -> str:
    """Send one request; the status that came back, or what happened instead."""
    try:
        sock = socket.create_connection(("127.0.0.1", port), ANSWER_TIMEOUT_S)
    except OSError as error:
        return f"no connection: {error}"
    try:
        # A refusal may come, and the connection go, before all is sent; the answer can still be read then.
        with contextlib.suppress(OSError):
            sock.sendall(request.payload)
        if request.ending == "read":
            return _read_status(sock)
        if request.ending == "hold":
            held.append(sock)
            if len(held) > HELD_CONNECTIONS:
                held.popleft().close()
        return request.ending
    finally:
        if request.ending != "hold":
            sock.close()


def _read_status(sock: socket.socket) -> str:
    """The first status of 500 and above, or the last status, until the service closes the connection."""
    received = bytearray()
    try:
        while data := sock.recv(65536):
            received += data
    except TimeoutError:
        return SILENT
    except ConnectionError:
        pass  # reset: what was received before counts
    statuses: list[str] = [status.decode() for status in STATUS_LINE.findall(bytes(received))]
    if not statuses:
        return NO_ANSWER
    return next((status for status in statuses if status.startswith("5")), statuses[-1])


def send_valid(port: int, number: int) -> str | None:
    """One of a few valid requests in turn; None when it was answered as it should be, else what went wrong."""
    chat = {"model": "default", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}
    match number % 4:
        case 0:
            status = status_of(port, "/healthz")
            return None if status == 200 else f"/healthz: {status}"
        case 1:
            return _expect(port, "/v1/chat/completions", chat, b'"choices"')
        case 2:
            return _expect(port, "/v1/chat/completions", {**chat, "stream": True}, b"data: [DONE]")
        case _:
            return _expect(port, "/v1/embeddings", {"model": "all-minilm-l6-v2", "input": "Hello"}, b'"embedding"')


def _expect(port: int, path: str, body: dict[str, object], wanted: bytes) -> str | None:
    try:
        status, answer = post(port, path, json.dumps(body).encode(), timeout_s=60)
    except (OSError, HTTPException) as error:
        return f"{path}: {error!r}"
    return None if status == 200 and wanted in answer else f"{path}: {status} {answer[:300]!r}"


def _snapshot(service: ServiceProcess, sent: int, held: deque[socket.socket]) -> Snapshot:
    # Open connections are open files: they are closed and let go before counting.
    _close_all(held)
    status_of(service.port, "/healthz")
    engine = service.engine_pid()
    return Snapshot(
        after_requests=sent,
        service=_process(service.pid),
        engine=_process(engine) if engine is not None else None,
    )


def _process(pid: int) -> ProcessSnapshot:
    return ProcessSnapshot(pid=pid, rss_less_kv_bytes=read_memory(pid).less_kv_bytes, open_files=open_files(pid))


def _close_all(held: deque[socket.socket]) -> None:
    while held:
        held.popleft().close()
