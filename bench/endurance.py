"""Thousands of requests of all kinds whose clients leave in every phase: what is left of them in the end.

The run is cut into parts. After each one all clients stop, the service must come to rest, a few undisturbed requests
are timed, and memory, open files and slots are looked at.
"""

from __future__ import annotations

import itertools
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable

import msgspec

from bench.assault import NO_ANSWER, SILENT, STATUS_LINE
from bench.chat import COLD, chat
from bench.endurance_jobs import CHAT_MODEL, EXPECTED, Job, job
from bench.memory import open_files, read_memory
from bench.service_process import ServiceFailed, ServiceProcess
from bench.spread import Spread
from magnitude.schedule.inference import ServiceState

CLIENTS = 8
# A conversation, an embedding and a grammar of every kind have been there by then.
FIRST_PART = 500
PARTS = 5
# A request of this run that has no answer by then never gets one.
ANSWER_TIMEOUT_S = 120.0
# Unfinished requests are cut off after this; see `bench/assault.py`.
SERVICE_SETTINGS = {"server": {"client_timeout_s": 5.0}}
REST_TIMEOUT_S = 30.0
# An engine that is idle gives its heap back after a second.
SETTLE_S = 3.0
PROBES = 15
# What memory at the end may be, as a multiple of that after the first part.
MEMORY_GOAL = 1.03
# The median of undisturbed requests on a quiet machine moves by a tenth from one half minute to the next.
TIME_GOAL = 1.15
LISTED = 20
_LOGGED_FAULT = re.compile(r"Traceback|^\S+ (error|critical)\b", re.MULTILINE)


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """The service at rest, `after_requests`. `left` says in words what is still held and should not be."""

    after_requests: int
    rest_s: float
    left: list[str]
    service_bytes: int
    engine_bytes: int
    kv_bytes: int
    service_files: int
    engine_files: int
    probe_s: Spread


class EnduranceResult(msgspec.Struct, frozen=True, kw_only=True):
    """`answers` counts by kind and ending; `unexpected` says which request got what it should not; `faults` are the
    lines of the log that speak of one."""

    requests: int
    wall_s: float
    answers: dict[str, dict[str, int]]
    unexpected: list[str]
    rests: list[Rest]
    engine_pids: list[int]
    engine_restarts: int
    faults: list[str]

    @property
    def missed(self) -> list[str]:
        """What should not have been, in words."""
        first, last = self.rests[0], self.rests[-1]
        found = [f"after {rest.after_requests} requests: {line}" for rest in self.rests for line in rest.left]
        for name, before, after, goal in (
            ("the service's memory", first.service_bytes, last.service_bytes, MEMORY_GOAL),
            ("the engine's memory", first.engine_bytes, last.engine_bytes, MEMORY_GOAL),
            ("an undisturbed request's time", first.probe_s.median, last.probe_s.median, TIME_GOAL),
        ):
            if after > goal * before:
                found.append(f"{name} is {after / before:.3f} times that after {first.after_requests} requests")
        if (last.service_files, last.engine_files) > (first.service_files, first.engine_files):
            found.append(
                f"open files went from {first.service_files} and {first.engine_files} to {last.service_files} and "
                f"{last.engine_files}"
            )
        if len(self.engine_pids) > 1 or self.engine_restarts:
            found.append(f"the engine was started again {self.engine_restarts} times")
        return [*found, *self.unexpected, *self.faults]


def measure_endurance(
    service: ServiceProcess, requests: int, seed: int, progress: Callable[[str], None] = lambda _: None
) -> EnduranceResult:
    """Send `requests`, from eight clients. Raises `ServiceFailed` when the service is gone."""
    begin = time.monotonic()
    answers: dict[str, Counter[str]] = {}
    unexpected: list[str] = []
    rests: list[Rest] = []
    pids: list[int] = []
    sent = 0
    for end in part_ends(requests):
        for kind, answer, problem in _run_part(service.port, seed, sent, end, progress):
            answers.setdefault(kind, Counter())[answer] += 1
            if problem:
                unexpected.append(problem)
        sent = end
        progress(f"{sent} sent, at rest")
        rests.append(_rest(service, sent))
        pid = service.engine_pid()
        if pid is not None and pid not in pids:
            pids.append(pid)
    return EnduranceResult(
        requests=requests,
        wall_s=time.monotonic() - begin,
        answers={kind: dict(counts.most_common()) for kind, counts in sorted(answers.items())},
        unexpected=unexpected,
        rests=rests,
        engine_pids=pids,
        engine_restarts=service.state().health.engine_restarts,
        faults=faults_in((service.home / "service.log").read_text("utf-8", "replace")),
    )


def part_ends(requests: int) -> list[int]:
    """After how many requests the service is looked at: the first 500 (of a short run: a tenth), then evenly."""
    first = min(FIRST_PART, max(1, requests // 10)) if requests > 1 else 1
    ends = {first + (requests - first) * part // (PARTS - 1) for part in range(PARTS)}
    return sorted(ends)


def faults_in(log: str) -> list[str]:
    """Lines of the service's log that speak of a fault of its own."""
    return [line for line in log.splitlines() if _LOGGED_FAULT.search(line)][:LISTED]


def _run_part(
    port: int, seed: int, begin: int, end: int, progress: Callable[[str], None]
) -> list[tuple[str, str, str | None]]:
    """Requests `begin` to `end` from all clients: kind, answer, and what was wrong with it."""
    results: list[tuple[str, str, str | None]] = []
    numbers = itertools.count(begin)
    lock = threading.Lock()

    def client() -> None:
        while True:
            with lock:
                number = next(numbers)
            if number >= end:
                return
            todo = job(seed, number)
            answer = send(port, todo)
            problem = problem_with(todo, answer)
            with lock:
                results.append((todo.kind, answer if todo.ending == "read" else f"left: {todo.ending}", problem))
                if len(results) % 20 == 0:
                    progress(f"{begin + len(results)} sent")

    threads = [threading.Thread(target=client, daemon=True) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def problem_with(todo: Job, answer: str) -> str | None:
    """Why `answer` is none that this request may get; None when it is. A client that left saw none."""
    if todo.ending != "read" and (not answer[:1].isdigit() or int(answer[:3]) in EXPECTED[todo.kind] | {408}):
        return None
    if answer[:3].isdigit() and int(answer[:3]) in EXPECTED[todo.kind] and answer[3:] == "":
        return None
    return f"{todo.kind}, {todo.ending}: {answer} for {todo.payload()[:400]!r}"


def send(port: int, todo: Job) -> str:
    """Send one request and behave as the job says. The status, with what is wrong with the answer behind it."""
    try:
        sock = socket.create_connection(("127.0.0.1", port), ANSWER_TIMEOUT_S)
    except OSError as error:
        return f"no connection: {error}"
    with sock:
        try:
            sock.sendall(todo.payload()[: todo.sent_bytes()])
            match todo.ending:
                case "read":
                    return status_in(_read_all(sock), todo)
                case "head" | "body" | "later":
                    time.sleep(todo.stay_s)
                case "answer":
                    sock.recv(512)
        except TimeoutError:
            return SILENT
        except OSError as error:
            return f"broken: {error!r}"
        if todo.stay_s > 0.4:  # half of those who leave do so without a goodbye: the connection is reset
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return todo.ending


def _read_all(sock: socket.socket) -> bytes:
    received = bytearray()
    while data := sock.recv(65536):
        received += data
    return bytes(received)


def status_in(answer: bytes, todo: Job) -> str:
    """The status of a whole answer. A stream must have come to its end, or to an error that its status would have
    been, had it been known in time."""
    status = STATUS_LINE.match(answer)
    if status is None:
        return NO_ANSWER
    code = status[1].decode()
    if code != "200" or not todo.body.get("stream") or b"data: [DONE]" in answer:
        return code
    if todo.kind == "hard deadline" and b'"deadline_exceeded"' in answer:
        return "504"
    return f"{code} and a stream that ends with {answer[-200:]!r}"


def _rest(service: ServiceProcess, sent: int) -> Rest:
    """Wait until the service is at rest, and look at it."""
    begin = time.monotonic()
    while (left := held_in(service.state())) and time.monotonic() - begin < REST_TIMEOUT_S:
        time.sleep(0.1)
    rest_s = time.monotonic() - begin
    probe_s = Spread.of([_probe(service) for _ in range(PROBES)])
    time.sleep(SETTLE_S)
    engine = service.engine_pid()
    if engine is None:
        raise ServiceFailed(f"the service has no engine:\n{service.log_tail()}")
    served, run = read_memory(service.pid), read_memory(engine)
    return Rest(
        after_requests=sent,
        rest_s=rest_s,
        left=left,
        service_bytes=served.less_kv_bytes,
        engine_bytes=run.less_kv_bytes,
        kv_bytes=run.kv_bytes,
        service_files=open_files(service.pid),
        engine_files=open_files(engine),
        probe_s=probe_s,
    )


def _probe(service: ServiceProcess) -> float:
    body = {
        "model": CHAT_MODEL,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 8,
        "temperature": 0,
    }
    return chat(service.port, body, COLD).wall_s


def held_in(state: ServiceState) -> list[str]:
    """What is held by requests, in words: nothing of it may be while there are none."""
    counts = {
        "requests running": state.health.running,
        "requests waiting": state.health.queue_depth,
        "requests open in the engine": state.engine_open_requests,
        "runs of encoders": state.schedule.runs_running + state.schedule.runs_waiting,
    }
    for name, model in state.schedule.models.items():
        counts |= {
            f"generations of {name}": model.running + model.paused + sum(model.waiting.values()),
            f"running slots of {name}": model.kv.running_slots,
            f"slots of {name} that are being cleaned": model.kv.cleaning_slots,
        }
    return [f"{count} {what}" for what, count in counts.items() if count]
