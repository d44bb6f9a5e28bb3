"""The figures of kernels as tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bench.kernel_memory import EngineMemory
from bench.kernel_switch import SwitchCost
from bench.kernels import KernelFigures
from bench.memory import MemoryUse
from bench.spread import Spread


def print_figures(console: Console, figures: KernelFigures) -> None:
    console.print(f"{figures.model}, {figures.threads} threads")
    for name, facts in figures.facts.items():
        told = ", ".join(f"{key} {value}" for key, value in facts.items())
        distance = figures.kl_nats.get(name)
        kl = "" if distance is None else f"; {distance:.4f} nats from float"
        console.print(f"{name}: {told}{kl}", soft_wrap=True, markup=False)
    names = list(figures.facts)
    table = Table("tokens/s", *names)
    for run in dict.fromkeys(rate.run for rate in figures.rates):
        rates = {rate.contender: rate for rate in figures.rates if rate.run == run}
        cells = [f"{rates[names[0]].tokens_per_s.median:.1f}"]
        cells += [f"{rates[name].tokens_per_s.median:.1f}\n{times(rates[name].kernels_times)}" for name in names[1:]]
        table.add_row(run, *cells)
    console.print(table)
    if figures.steps:
        table = Table("step", "ms", "weights, MB", "KV, MB", "reads, GB/s", "share", "operators, µs (calls)")
        for step in figures.steps:
            operators = ", ".join(
                f"{name} {taken:.0f} ({step.calls[name]:.0f})" for name, taken in step.operators_us.items()
            )
            table.add_row(
                step.run,
                f"{step.step_ms:.2f}",
                f"{step.weight_bytes / 1e6:.1f}",
                f"{step.kv_bytes / 1e6:.1f}",
                spread(step.read_rate.scaled(1e-9)),
                f"{step.bandwidth_share:.0%}",
                operators,
            )
        console.print(table)
    console.print(f"weights' file: {figures.weights_file_bytes / 1e6:.1f} MB")
    for name, use in figures.memory.items():
        console.print(memory_line(name, use), markup=False)


def print_switch(console: Console, cost: SwitchCost) -> None:
    widths = " and ".join(map(str, cost.widths))
    console.print(
        f"between {widths} threads: the change {spread(cost.change_us)} µs, the step after it longer by "
        f"{spread(cost.next_step_us)} µs; {cost.idle_cpu_s:.3f} s of processor time in {cost.idle_s:.0f} s "
        "without a step"
    )


def print_engines(console: Console, engines: list[EngineMemory]) -> None:
    for engine in engines:
        line = memory_line(f"engine with engine.graph: {engine.graph}", engine.memory)
        packed = f"packed weights among the files {engine.packed_bytes / 1e6:.0f}"
        console.print(f"{line}; {packed}; first start, idle: {engine.first_bytes / 1e6:.0f}", markup=False)


def memory_line(name: str, use: MemoryUse) -> str:
    return (
        f"{name}: RSS {use.rss_bytes / 1e6:.0f} MB: KV {use.kv_bytes / 1e6:.0f}, "
        f"weights mapped {use.weights_bytes / 1e6:.0f}, other files {use.files_bytes / 1e6:.0f}, "
        f"anonymous {use.anon_bytes / 1e6:.0f}"
    )


def times(ratio: Spread) -> str:
    return f"{ratio.median:.2f} x ({ratio.low:.2f} to {ratio.high:.2f})"


def spread(value: Spread) -> str:
    return f"{value.median:.1f} ({value.low:.1f} to {value.high:.1f})"
