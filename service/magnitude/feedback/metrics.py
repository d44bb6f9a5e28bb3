"""The numbers that Prometheus reads. Names and labels are a promise to dashboards: add, do not rename.

Everything sits in a registry of its own, so that tests and several services in one process do not meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from magnitude.engine.protocol import PoolUse
from magnitude.feedback.board_metrics import BoardCollector
from magnitude.feedback.counter_sight import CountersState
from magnitude.feedback.memory_metrics import MemoryCollector
from magnitude.feedback.operator_metrics import OperatorCollector
from magnitude.feedback.operators import OperatorFigures
from magnitude.feedback.run_series import RunFigures
from magnitude.feedback.schedule_metrics import RunCollector, ScheduleCollector
from magnitude.feedback.strategy_metrics import StrategyCollector
from magnitude.governor.memory_state import MemoryState
from magnitude.governor.thermal_report import BoardView
from magnitude.schedule.figures import ScheduleFigures
from magnitude.schedule.strategy_report import StrategyState

# From a warm short prompt on a desktop (20 ms) to 4,000 tokens on a Pi 5 (about a minute).
_TTFT_BUCKETS_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 25.0, 50.0, 100.0)
# 5 ms is 200 tokens a second, the fastest small model; beyond 1.6 s a reader takes it for a stall.
_INTER_TOKEN_BUCKETS_S = (0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.2, 0.4, 0.8, 1.6, 5.0)
# An idle service starts at once (1 ms); with a full queue a request waits for whole answers.
_QUEUE_BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
# From a cached prompt's last chunk (10 ms) to 4,000 tokens on a Pi 5 (about a minute).
_PREFILL_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 25.0, 50.0, 100.0)
# Sizes that a graph is run with; throughput has its knee among the small ones.
_BATCH_BUCKETS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128)
# From a health check (1 ms) to a long answer on a slow board.
_DURATION_BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """All instruments of the service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        on = self.registry
        self.requests = Counter(
            "magnitude_requests", "HTTP requests by route and status.", ["route", "status"], registry=on
        )
        self.request_seconds = Histogram(
            "magnitude_request_seconds", "Whole HTTP requests.", ["route"], buckets=_DURATION_BUCKETS_S, registry=on
        )
        self.cancelled = Counter(
            "magnitude_requests_cancelled", "Requests whose client went away before the end.", ["route"], registry=on
        )
        self.refused_connections = Counter(
            "magnitude_connections_refused", "Connections beyond the limit, answered with 503.", registry=on
        )
        self.prompt_tokens = Counter("magnitude_prompt_tokens", "Tokens of prompts.", ["model"], registry=on)
        self.cached_tokens = Counter(
            "magnitude_cached_prompt_tokens", "Prompt tokens found in a KV slot.", ["model"], registry=on
        )
        self.drafted_tokens = Counter(
            "magnitude_drafted_tokens", "Tokens drafted ahead and verified.", ["model"], registry=on
        )
        self.accepted_tokens = Counter(
            "magnitude_accepted_draft_tokens", "Drafted tokens that were right.", ["model"], registry=on
        )
        self.deadline_misses = Counter(
            "magnitude_deadline_misses",
            "Requests refused (hard) or answered shorter (soft) at their deadline.",
            ["model", "mode"],
            registry=on,
        )
        self.generated_tokens = Counter("magnitude_generated_tokens", "Tokens generated.", ["model"], registry=on)
        self.time_to_first_token_s = Histogram(
            "magnitude_time_to_first_token_seconds",
            "From the request's arrival to its first token.",
            ["model"],
            buckets=_TTFT_BUCKETS_S,
            registry=on,
        )
        self.inter_token_s = Histogram(
            "magnitude_inter_token_seconds",
            "Between one token and the next.",
            ["model"],
            buckets=_INTER_TOKEN_BUCKETS_S,
            registry=on,
        )
        self.queue_s = Histogram(
            "magnitude_queue_seconds",
            "Wait for a KV slot.",
            ["model"],
            buckets=_QUEUE_BUCKETS_S,
            registry=on,
        )
        self.prefill_s = Histogram(
            "magnitude_prefill_seconds",
            "Computing a prompt, or a whole run of an encoder.",
            ["model"],
            buckets=_PREFILL_BUCKETS_S,
            registry=on,
        )
        self.decode_s = Histogram(
            "magnitude_decode_seconds",
            "From the first token of an answer to its last.",
            ["model"],
            buckets=_DURATION_BUCKETS_S,
            registry=on,
        )
        self.total_s = Histogram(
            "magnitude_answer_seconds",
            "From a request's arrival to the end of its answer.",
            ["model"],
            buckets=_DURATION_BUCKETS_S,
            registry=on,
        )
        self.batch_size = Histogram(
            "magnitude_batch_size",
            "Mean number of generations that decoded together with one, or of texts that were encoded together.",
            ["model"],
            buckets=_BATCH_BUCKETS,
            registry=on,
        )
        self.kv_bytes = Gauge("magnitude_kv_bytes", "Memory that KV slots really hold.", registry=on)
        self.run_pool_bytes = Gauge(
            "magnitude_run_pool_bytes",
            "Heap that encoder runs leave behind: held now, and the peak and mean over all runs.",
            ["figure"],
            registry=on,
        )
        self.resident_bytes = Gauge(
            "magnitude_resident_bytes", "Resident memory by process.", ["process"], registry=on
        )
        self.running = Gauge("magnitude_running_requests", "Requests that the engine holds.", registry=on)
        self.queued = Gauge(
            "magnitude_queued_requests", "Requests that wait for a KV slot or a place in the engine.", registry=on
        )
        self._runs = RunCollector()
        on.register(self._runs)
        self._schedule = ScheduleCollector()
        on.register(self._schedule)
        self._board = BoardCollector()
        on.register(self._board)
        self._memory = MemoryCollector()
        on.register(self._memory)
        self._strategies = StrategyCollector()
        on.register(self._strategies)
        self._operators = OperatorCollector()
        on.register(self._operators)
        self.engine_restarts = Gauge(
            "magnitude_engine_restarts", "Times the engine was started again since the service started.", registry=on
        )

    def observe_answer(
        self, model: str, *, queue_s: float, prefill_s: float, total_s: float, decode_s: float | None = None
    ) -> None:
        """The time split of one complete answer. Encoders do not decode."""
        self.queue_s.labels(model).observe(queue_s)
        self.prefill_s.labels(model).observe(prefill_s)
        if decode_s is not None:
            self.decode_s.labels(model).observe(decode_s)
        self.total_s.labels(model).observe(total_s)

    def watch_memory(
        self,
        *,
        service_rss_bytes: Callable[[], float],
        engine_rss_bytes: Callable[[], float],
        kv_bytes: Callable[[], float],
        run_pool: Callable[[], PoolUse] = PoolUse,
    ) -> None:
        """Ask these when the numbers are read, so that nothing has to run in between."""
        self.resident_bytes.labels("service").set_function(service_rss_bytes)
        self.resident_bytes.labels("engine").set_function(engine_rss_bytes)
        self.kv_bytes.set_function(kv_bytes)
        self.run_pool_bytes.labels("held").set_function(lambda: run_pool().held_bytes)
        self.run_pool_bytes.labels("peak").set_function(lambda: run_pool().peak_bytes)
        self.run_pool_bytes.labels("mean").set_function(lambda: run_pool().mean_bytes)

    def watch_load(
        self,
        *,
        running: Callable[[], float],
        queued: Callable[[], float],
        engine_restarts: Callable[[], float],
    ) -> None:
        """Like `watch_memory`, for what the schedule knows."""
        self.running.set_function(running)
        self.queued.set_function(queued)
        self.engine_restarts.set_function(engine_restarts)

    def watch_schedule(self, figures: Callable[[], ScheduleFigures]) -> None:
        """Like `watch_memory`, for slots, prefixes and conversations."""
        self._schedule.source = figures

    def watch_memory_steps(self, state: Callable[[], MemoryState]) -> None:
        """Like `watch_memory`, for limits and the steps that are taken near them."""
        self._memory.source = state

    def watch_board(self, view: Callable[[], BoardView]) -> None:
        """Like `watch_memory`, for heat, clocks and supply."""
        self._board.source = view

    def watch_strategies(self, states: Callable[[], Mapping[str, StrategyState]]) -> None:
        """Like `watch_memory`, for the strategy loops."""
        self._strategies.source = states

    def watch_operators(
        self, operators: Callable[[], Sequence[OperatorFigures]], counters: Callable[[], CountersState]
    ) -> None:
        """Like `watch_memory`, for operators and the processor's counters."""
        self._operators.operators, self._operators.counters = operators, counters

    def watch_runs(self, figures: Callable[[], list[RunFigures]]) -> None:
        """Like `watch_memory`, for graph runs by shape."""
        self._runs.source = figures

    def render(self) -> bytes:
        """All numbers in Prometheus' text format (version 0.0.4)."""
        return generate_latest(self.registry)
