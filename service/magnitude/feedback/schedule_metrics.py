"""The schedule's figures for Prometheus, asked for when the numbers are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from magnitude.feedback.run_series import RunFigures
from magnitude.schedule.figures import ModelFigures, ScheduleFigures

Samples = Iterable[tuple[tuple[str, ...], float]]


class RunCollector(Collector):
    """Graph runs by shape."""

    def __init__(self) -> None:
        self.source: Callable[[], list[RunFigures]] = list

    def collect(self) -> Iterator[Metric]:
        labels = ["model", "kind", "rows", "tokens"]
        runs = CounterMetricFamily("magnitude_engine_runs", "Graph runs by shape.", labels=labels)
        seconds = GaugeMetricFamily(
            "magnitude_engine_run_seconds", "What a graph run of a shape takes.", labels=[*labels, "figure"]
        )
        for one in self.source():
            values = [one.model, one.kind, str(one.rows), str(one.tokens)]
            runs.add_metric(values, one.runs)
            seconds.add_metric([*values, "mean"], one.mean_s)
            seconds.add_metric([*values, "p95"], one.p95_s)
        yield runs
        yield seconds


class ScheduleCollector(Collector):
    """All series come from one `ScheduleFigures`, so that they fit together."""

    def __init__(self) -> None:
        self.source: Callable[[], ScheduleFigures] = ScheduleFigures

    def collect(self) -> Iterator[Metric]:
        figures = self.source()
        for kind, name, text, labels, samples in _SERIES:
            family = kind(name, text, labels=["model", *labels])
            for model, one in figures.models.items():
                for values, value in samples(one):
                    family.add_metric([model, *values], value)
            yield family
        runs = GaugeMetricFamily("magnitude_encoder_runs", "Encoder and tensor runs by state.", labels=["state"])
        runs.add_metric(["running"], figures.runs_running)
        runs.add_metric(["waiting"], figures.runs_waiting)
        yield runs


def _slots(one: ModelFigures) -> Samples:
    kv = one.kv
    return [
        (("running",), kv.running_slots),
        (("idle",), kv.idle_slots),
        (("free",), kv.free_slots),
        (("cleaning",), kv.cleaning_slots),
    ]


def _reused(one: ModelFigures) -> Samples:
    kv = one.kv
    return [
        (("slot",), kv.reused_tokens - kv.copied_tokens - kv.restored_tokens),
        (("copy",), kv.copied_tokens),
        (("disk",), kv.restored_tokens),
    ]


def _single(value: Callable[[ModelFigures], float]) -> Callable[[ModelFigures], Samples]:
    return lambda one: [((), value(one))]


def _by(values: Callable[[ModelFigures], dict[str, int]]) -> Callable[[ModelFigures], Samples]:
    return lambda one: [((name,), value) for name, value in sorted(values(one).items())]


_Kind = type[CounterMetricFamily] | type[GaugeMetricFamily]
_SERIES: list[tuple[_Kind, str, str, list[str], Callable[[ModelFigures], Samples]]] = [
    (GaugeMetricFamily, "magnitude_slots", "KV slots by state.", ["state"], _slots),
    (
        CounterMetricFamily,
        "magnitude_prefix_hits",
        "Requests that found a beginning computed.",
        [],
        _single(lambda one: one.kv.hits),
    ),
    (
        CounterMetricFamily,
        "magnitude_prefix_misses",
        "Requests of which something had to be computed, by why.",
        ["reason"],
        _by(lambda one: one.kv.misses),
    ),
    (
        CounterMetricFamily,
        "magnitude_reused_tokens",
        "Prompt tokens that were not computed, by where they were.",
        ["source"],
        _reused,
    ),
    (
        CounterMetricFamily,
        "magnitude_prefix_evictions",
        "Prefixes dropped for others.",
        [],
        _single(lambda one: one.kv.evictions),
    ),
    (
        GaugeMetricFamily,
        "magnitude_kv_tokens",
        "Tokens whose KV is in memory.",
        [],
        _single(lambda one: one.kv.resident_tokens),
    ),
    (
        GaugeMetricFamily,
        "magnitude_kv_budget_bytes",
        "Memory that all KV of a model may take.",
        [],
        _single(lambda one: one.kv.budget_bytes),
    ),
    (
        GaugeMetricFamily,
        "magnitude_saved_conversations",
        "Conversations on disk.",
        [],
        _single(lambda one: one.kv.saved_copies),
    ),
    (
        GaugeMetricFamily,
        "magnitude_saved_bytes",
        "Disk space of saved conversations.",
        [],
        _single(lambda one: one.saved_bytes),
    ),
    (
        GaugeMetricFamily,
        "magnitude_compute_slots",
        "Generations that may decode together.",
        [],
        _single(lambda one: one.capacity.compute_slots),
    ),
    (
        GaugeMetricFamily,
        "magnitude_generations",
        "Generations by state; paused ones gave way to others.",
        ["state"],
        lambda one: [(("running",), one.running), (("paused",), one.paused)],
    ),
    (
        GaugeMetricFamily,
        "magnitude_waiting_requests",
        "Generations that wait for a compute slot, paused ones included.",
        ["priority"],
        _by(lambda one: one.waiting),
    ),
    (
        GaugeMetricFamily,
        "magnitude_reserved_requests",
        "Announced requests that compute slots are held for.",
        [],
        _single(lambda one: one.reserved),
    ),
    (
        CounterMetricFamily,
        "magnitude_preemptions",
        "Times that a running generation was paused for another one.",
        [],
        _single(lambda one: one.preemptions),
    ),
    (
        GaugeMetricFamily,
        "magnitude_conversations",
        "Conversations that compute, or wait and will probably be back.",
        [],
        _single(lambda one: one.capacity.alive),
    ),
    (
        GaugeMetricFamily,
        "magnitude_conversation_capacity",
        "Conversations that would keep all compute slots busy.",
        [],
        _single(lambda one: one.capacity.conversations),
    ),
    (
        GaugeMetricFamily,
        "magnitude_conversation_limit",
        "Conversations up to which new ones are taken in freely.",
        [],
        _single(lambda one: one.capacity.limit),
    ),
    (
        GaugeMetricFamily,
        "magnitude_compute_segment_seconds",
        "Mean time that one model call computes, by kind of task.",
        ["task"],
        lambda one: [((s.task,), s.compute_s) for s in one.segments if s.compute_samples],
    ),
    (
        GaugeMetricFamily,
        "magnitude_wait_segment_seconds",
        "Mean time between two model calls of a conversation, by kind of task.",
        ["task"],
        lambda one: [((s.task,), s.wait_s) for s in one.segments if s.wait_samples],
    ),
]
