"""The strategy loops for Prometheus, asked for when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from magnitude.schedule.strategy_report import StrategyState

# Decisions after which something else runs than before.
_SWITCHES = ("switch", "revert", "situation")


class StrategyCollector(Collector):
    """All series by model; parts are those of a strategy."""

    def __init__(self) -> None:
        self.source: Callable[[], Mapping[str, StrategyState]] = dict

    def collect(self) -> Iterator[Metric]:
        states = self.source()
        yield from _decisions(states)
        yield from _experiments(states)
        sessions = GaugeMetricFamily("magnitude_strategy_sessions", "Further sessions.", labels=["model"])
        held = GaugeMetricFamily("magnitude_strategy_session_bytes", "What they take.", labels=["model"])
        cpu_s = CounterMetricFamily(
            "magnitude_strategy_loop_cpu_seconds", "What the loop itself has computed.", labels=["model"]
        )
        for model, state in states.items():
            sessions.add_metric([model], len(state.sessions))
            held.add_metric([model], sum(session.size_bytes for session in state.sessions))
            cpu_s.add_metric([model], state.counts.cpu_s)
        yield sessions
        yield held
        yield cpu_s


def _decisions(states: Mapping[str, StrategyState]) -> Iterator[Metric]:
    labels = ["model", "part"]
    switches = CounterMetricFamily(
        "magnitude_strategy_switches", "Times that another choice was taken.", labels=labels
    )
    kinds = CounterMetricFamily(
        "magnitude_strategy_decisions", "Decisions of the strategy loop.", labels=["model", "kind"]
    )
    delays = SummaryMetricFamily(
        "magnitude_strategy_decision_delay_seconds", "From the first sample to the decision.", labels=labels
    )
    for model, state in states.items():
        counts = state.counts
        taken: dict[str, int] = {}
        for kind, parts in counts.decisions.items():
            kinds.add_metric([model, kind], sum(parts.values()))
            for part, total in parts.items() if kind in _SWITCHES else ():
                taken[part] = taken.get(part, 0) + total
        for part, total in taken.items():
            switches.add_metric([model, part], total)
        for part, count in counts.delays.items():
            delays.add_metric([model, part], count_value=count, sum_value=counts.delay_s.get(part, 0.0))
    yield switches
    yield kinds
    yield delays


def _experiments(states: Mapping[str, StrategyState]) -> Iterator[Metric]:
    labels = ["model", "part"]
    trials = CounterMetricFamily(
        "magnitude_strategy_trials", "Times that a trial under load began or went on.", labels=labels
    )
    probes = CounterMetricFamily("magnitude_strategy_probes", "Comparisons asked for while idle.", labels=labels)
    for model, state in states.items():
        for family, counts in ((trials, state.counts.trials), (probes, state.counts.probes)):
            for part, count in counts.items():
                family.add_metric([model, part], count)
    yield trials
    yield probes
