"""How long `/healthz` takes while the engine is deep in a long prefill."""

from __future__ import annotations

import http.client
import json
import threading
import time

import msgspec

from bench.service_process import ServiceFailed, ServiceProcess, post

PROBE_PERIOD_S = 0.02
PREFILL_TOKENS = 4000
SENTENCE = "The quick brown fox jumps over the lazy dog near the river bank. "
# Sentences from which the tokens of one are counted.
SAMPLE_SENTENCES = 20


class HealthResult(msgspec.Struct, frozen=True, kw_only=True):
    """Answer times of `/healthz`, in milliseconds. `idle_*` without a request, the rest during the prefill."""

    prompt_tokens: int
    prefill_wall_s: float
    probes: int
    failed_probes: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    idle_p50_ms: float
    idle_p99_ms: float


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of `values` do not exceed. Raises `ValueError` when there are none."""
    if not values:
        raise ValueError("no values to take a percentile of")
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


def measure_health(service: ServiceProcess, model: str = "default") -> HealthResult:
    """Probe at rest, then again while a prompt of about 4,000 tokens is prefilled. Raises `ServiceFailed`."""
    idle = _Prober(service.port)
    idle.run_for(2.0)
    sample = _prompt_tokens(service, model, SAMPLE_SENTENCES)
    sentences = PREFILL_TOKENS * SAMPLE_SENTENCES // sample
    prober = _Prober(service.port)
    thread = threading.Thread(target=prober.run, daemon=True)
    begin = time.perf_counter()
    thread.start()
    tokens = _prompt_tokens(service, model, sentences)
    wall_s = time.perf_counter() - begin
    prober.over.set()
    thread.join()
    return HealthResult(
        prompt_tokens=tokens,
        prefill_wall_s=wall_s,
        probes=len(prober.times_ms),
        failed_probes=prober.failed,
        p50_ms=percentile(prober.times_ms, 0.5),
        p99_ms=percentile(prober.times_ms, 0.99),
        max_ms=max(prober.times_ms),
        idle_p50_ms=percentile(idle.times_ms, 0.5),
        idle_p99_ms=percentile(idle.times_ms, 0.99),
    )


def _prompt_tokens(service: ServiceProcess, model: str, sentences: int) -> int:
    """Run a prompt of so many sentences for one new token; what the service counts as its prompt tokens."""
    body = {"model": model, "prompt": SENTENCE * sentences, "max_tokens": 1, "temperature": 0}
    status, answer = post(service.port, "/v1/completions", json.dumps(body).encode())
    if status != 200:
        raise ServiceFailed(f"/v1/completions answers {status}: {answer[:500].decode('utf-8', 'replace')}")
    return int(json.loads(answer)["usage"]["prompt_tokens"])


class _Prober:
    """Asks `/healthz` over one kept connection, each 20 ms or as soon as the last answer is there."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        self.over = threading.Event()
        self.times_ms: list[float] = []
        self.failed = 0

    def run_for(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self.over.set)
        timer.start()
        self.run()

    def run(self) -> None:
        due = time.perf_counter()
        while not self.over.is_set():
            begin = time.perf_counter()
            try:
                self._connection.request("GET", "/healthz")
                response = self._connection.getresponse()
                response.read()
                self.failed += response.status != 200
            except (OSError, http.client.HTTPException):
                self.failed += 1
                self._connection.close()
            self.times_ms.append((time.perf_counter() - begin) * 1000)
            due = max(due + PROBE_PERIOD_S, time.perf_counter())
            time.sleep(max(0.0, due - time.perf_counter()))
        self._connection.close()
