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
    """One section a figure, one row a contender."""
    table = Table("figure", "contender", "median", "from", "to", f"{OURS}/peer (from, to)")
    for figure in contenders[0].figures if contenders else ():
        for contender in contenders:
            figures = contender.figures[figure]
            spread, ratio = figures.spread, figures.ours_over_theirs
            table.add_row(
                f"{figure}, {figures.unit}" if contender is contenders[0] else "",
                contender.name,
                f"{spread.median:.0f}",
                f"{spread.low:.0f}",
                f"{spread.high:.0f}",
                ratio_text(ratio) if ratio is not None else "",
                end_section=contender is contenders[-1],
            )
    return table


def ratio_text(ratio: Spread, digits: int = 2) -> str:
    return f"{ratio.median:.{digits}f} ({ratio.low:.{digits}f}, {ratio.high:.{digits}f})"


def memory_table(contenders: list[ContenderResult]) -> Table:
    """Resident memory in MB, by stage and kind. `code` is the interpreter and its libraries."""
    table = Table("MB resident", "stage", "RSS", "KV", "less KV", "weights", "code", "anon")
    for contender in contenders:
        stages = (
            ("libraries", contender.memory_libraries),
            ("loaded", contender.memory_loaded),
            ("after runs", contender.memory_end),
        )
        for stage, memory in stages:
            first, last = stage == stages[0][0], stage == stages[-1][0]
            table.add_row(contender.name if first else "", stage, *_megabytes(memory), end_section=last)
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
    parts = {
        "interpreter and libraries": before.less_kv_bytes,
        "library pages that loading touched": end.files_bytes - before.files_bytes,
        "mapped weights": end.weights_bytes,
        "packed weights and session": loaded.anon_bytes - before.anon_bytes,
        "grown while running": end.anon_bytes - loaded.anon_bytes,
    }
    return (
        f"RSS less KV {end.less_kv_bytes / 1e6:.0f} MB, goal {goal / 1e6:.0f} MB "
        f"({RSS_WEIGHTS_FACTOR} x {contender.source_bytes / 1e6:.0f} MB + {RSS_BASE_BYTES / 1e6:.0f} MB): {verdict}. "
        "Of it: " + ", ".join(f"{name} {size / 1e6:.0f}" for name, size in parts.items())
    )
