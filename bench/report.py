"""The comparison as tables in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bench.compare import OURS, Comparison, ContenderResult
from bench.machine import Machine
from bench.memory import MemoryUse
from bench.spread import Spread

# The engine's resident memory less KV is to stay below 1.25 times the weights and this much for interpreter,
# libraries and session.
RSS_BASE_BYTES = 60_000_000
RSS_WEIGHTS_FACTOR = 1.25


def print_machine(console: Console, machine: Machine) -> None:
    console.print(
        f"{machine.cpu_model} ({machine.architecture}), {machine.cpus} CPUs, {machine.threads} threads used, "
        f"{machine.memory_bytes / 1e9:.1f} GB, Linux {machine.kernel}, Python {machine.python}, "
        f"ONNX Runtime {machine.onnxruntime}"
    )
    console.print(f"instruction set: {' '.join(machine.cpu_features) or 'unknown'}")
    if not machine.quiet:
        console.print(
            f"[yellow]The load is {machine.load_per_cpu} a CPU: something else is running, so only the ratios "
            "paired by round mean anything.[/yellow]"
        )


def print_comparison(console: Console, comparison: Comparison) -> None:
    print_machine(console, comparison.machine)
    for contender in comparison.contenders:
        facts = ", ".join(f"{name} {value}" for name, value in contender.facts.items())
        console.print(f"[bold]{contender.name}[/bold]: {contender.source} "
                      f"({contender.source_bytes / 1e6:.0f} MB), {facts}", soft_wrap=True)  # fmt: skip
    for name, reason in comparison.missing.items():
        console.print(f"[yellow]{name} was not measured: {reason}[/yellow]")
    console.print(
        f"{comparison.rounds} interleaved rounds, {comparison.threads} threads, "
        f"KV for {comparison.context} positions. "
        f"Median (smallest to largest); in brackets {OURS}/peer, paired by round."
    )
    console.print(figures_table(comparison.contenders))
    console.print(memory_table(comparison.contenders))
    for contender in comparison.contenders:
        if contender.name == OURS:
            console.print(goal_line(contender))


def figures_table(contenders: list[ContenderResult]) -> Table:
    """One row a figure, one column a contender."""
    table = Table("figure", *[contender.name for contender in contenders])
    for figure in contenders[0].figures if contenders else ():
        cells = []
        for contender in contenders:
            figures = contender.figures[figure]
            cell = spread_text(figures.spread)
            if figures.ours_over_theirs is not None:
                cell += f"\n\\[{spread_text(figures.ours_over_theirs, 2)}]"
            cells.append(cell)
        table.add_row(f"{figure}\n{contenders[0].figures[figure].unit}", *cells)
    return table


def spread_text(spread: Spread, digits: int = 0) -> str:
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f} to {spread.high:.{digits}f})"


def memory_table(contenders: list[ContenderResult]) -> Table:
    """Resident memory in MB, by stage and kind."""
    table = Table("MB resident", "stage", "RSS", "KV", "RSS less KV", "mapped weights", "libraries", "anonymous")
    for contender in contenders:
        stages = (
            ("libraries", contender.memory_libraries),
            ("model loaded", contender.memory_loaded),
            ("after all runs", contender.memory_end),
        )
        for stage, memory in stages:
            table.add_row(contender.name, stage, *_megabytes(memory))
    return table


def _megabytes(memory: MemoryUse) -> list[str]:
    parts = (
        memory.rss_bytes,
        memory.kv_bytes,
        memory.less_kv_bytes,
        memory.weights_bytes,
        memory.files_bytes,
        memory.anon_bytes,
    )
    return [f"{part / 1e6:.0f}" for part in parts]


def rss_goal_bytes(weights_bytes: int) -> int:
    return int(RSS_WEIGHTS_FACTOR * weights_bytes) + RSS_BASE_BYTES


def goal_line(contender: ContenderResult) -> str:
    """Whether the memory goal is met, and where the memory is."""
    end, loaded, before = contender.memory_end, contender.memory_loaded, contender.memory_libraries
    goal = rss_goal_bytes(contender.source_bytes)
    verdict = "met" if end.less_kv_bytes <= goal else "MISSED"
    return (
        f"RSS less KV {end.less_kv_bytes / 1e6:.0f} MB, goal {goal / 1e6:.0f} MB "
        f"({RSS_WEIGHTS_FACTOR} x {contender.source_bytes / 1e6:.0f} MB + {RSS_BASE_BYTES / 1e6:.0f} MB): {verdict}. "
        f"Of it: interpreter and libraries {before.less_kv_bytes / 1e6:.0f}, mapped weights "
        f"{end.weights_bytes / 1e6:.0f}, packed weights and session "
        f"{(loaded.anon_bytes - before.anon_bytes) / 1e6:.0f}, grown while running "
        f"{(end.less_kv_bytes - end.weights_bytes - loaded.less_kv_bytes + loaded.weights_bytes) / 1e6:.0f}."
    )
