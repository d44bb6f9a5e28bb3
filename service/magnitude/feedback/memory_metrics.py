"""The figures of memory and of the steps against its shortage for Prometheus, asked for when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from magnitude.governor.memory_ladder import STEPS
from magnitude.governor.memory_state import MemoryState


class MemoryCollector(Collector):
    """All series come from one `MemoryState`. What is unknown has no series."""

    def __init__(self) -> None:
        self.source: Callable[[], MemoryState] = MemoryState

    def collect(self) -> Iterator[Metric]:
        state = self.source()
        yield GaugeMetricFamily(
            "magnitude_memory_step",
            "Present step against a shortage of memory: 0 normal to 6 restart.",
            value=STEPS.index(state.step),
        )
        steps = CounterMetricFamily(
            "magnitude_memory_steps", "Steps taken against a shortage of memory.", labels=["step"]
        )
        for step in STEPS[1:]:
            steps.add_metric([step], state.steps.get(step, 0))
        yield steps
        yield _gauge("magnitude_memory_limit_bytes", "The nearest limit of memory.", state.limit_bytes)
        yield _gauge(
            "magnitude_memory_pressure_bytes",
            "Memory that counts against the limit: anonymous, shared and the kernel's own.",
            state.pressure_bytes,
        )
        yield _gauge("magnitude_memory_file_bytes", "Clean pages of files beside it.", state.file_bytes)
        yield _gauge("magnitude_memory_available_bytes", "Memory available on the board.", state.available_bytes)
        yield _gauge(
            "magnitude_memory_engine_bytes", "Memory of the engine's own, swapped out or not.", state.engine_own_bytes
        )
        stall = GaugeMetricFamily(
            "magnitude_memory_stall_percent",
            "Share of the last ten seconds in which some task, or all, waited for memory.",
            labels=["kind"],
        )
        for kind, percent in (("some", state.stall_some_percent), ("full", state.stall_full_percent)):
            if percent is not None:
                stall.add_metric([kind], percent)
        yield stall
        events = CounterMetricFamily(
            "magnitude_memory_events",
            "Times that a limit was met, since the control group was made.",
            labels=["event"],
        )
        counted = (("high", state.high_events), ("max", state.max_events), ("oom_kill", state.oom_kills))
        for event, count in counted:
            if count is not None:
                events.add_metric([event], count)
        yield events


def _gauge(name: str, text: str, value: int | None) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric([], value)
    return family
