"""Operators and the processor's counters for Prometheus, asked for when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from magnitude.feedback.counter_sight import CountersState
from magnitude.feedback.operators import OperatorFigures


class OperatorCollector(Collector):
    """What is not known has no series."""

    def __init__(self) -> None:
        self.operators: Callable[[], Sequence[OperatorFigures]] = list
        self.counters: Callable[[], CountersState] = CountersState

    def collect(self) -> Iterator[Metric]:
        yield from _operators(self.operators())
        yield from _counters(self.counters())


def _operators(figures: Sequence[OperatorFigures]) -> Iterator[Metric]:
    labels = ["model", "phase", "operator"]
    seconds = GaugeMetricFamily(
        "magnitude_operator_seconds",
        "What all operators of a kind take in a run, from sampled profiles.",
        labels=[*labels, "figure"],
    )
    shares = GaugeMetricFamily("magnitude_operator_share", "Their share of the run.", labels=labels)
    runs = CounterMetricFamily("magnitude_operator_profiled_runs", "Runs that were profiled.", labels=labels)
    for one in figures:
        of = [one.model, one.phase, one.operator]
        seconds.add_metric([*of, "mean"], one.mean_s)
        seconds.add_metric([*of, "p95"], one.p95_s)
        shares.add_metric(of, one.share)
        runs.add_metric(of, one.runs)
    yield seconds
    yield shares
    yield runs


def _counters(state: CountersState) -> Iterator[Metric]:
    ipc = GaugeMetricFamily("magnitude_instructions_per_cycle", "Of the engine's last stretch of work.")
    misses = GaugeMetricFamily(
        "magnitude_misses_per_1000_instructions", "Of the last cache, and of branches.", labels=["kind"]
    )
    stalled = GaugeMetricFamily("magnitude_stalled_share", "Share of the cycles in which nothing could be finished.")
    use = GaugeMetricFamily(
        "magnitude_memory_bandwidth_use",
        "Share of the memory's bandwidth that decoding takes, counted or estimated.",
        labels=["model", "source"],
    )
    if (rates := state.rates) is not None:
        if rates.ipc is not None:
            ipc.add_metric([], rates.ipc)
        if rates.cache_misses_per_1000 is not None:
            misses.add_metric(["cache"], rates.cache_misses_per_1000)
        if rates.branch_misses_per_1000 is not None:
            misses.add_metric(["branch"], rates.branch_misses_per_1000)
        if rates.stalled_share is not None:
            stalled.add_metric([], rates.stalled_share)
    for model, position in state.roofline.items():
        if position.bandwidth_use is not None:
            use.add_metric([model, position.source], position.bandwidth_use)
    yield from (ipc, misses, stalled, use)
