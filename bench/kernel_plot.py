"""Where decode steps of a kernel plan are below the roof of the memory (needs the `report` extra)."""

from __future__ import annotations

from pathlib import Path

from bench.kernels import KernelFigures, Step


def plot_roofline(figures: KernelFigures, target: Path) -> None:
    """Write bytes a second of each step over the bytes that it reads, with what the memory gives as the roof. Raises
    `ImportError` without matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "magnitude"
    from matplotlib import pyplot

    roofs = [step.read_rate.scaled(1e-9) for step in figures.steps]
    figure, axes = pyplot.subplots(figsize=(8, 4.2))
    axes.errorbar(
        range(len(roofs)),
        [roof.median for roof in roofs],
        [[roof.median - roof.low for roof in roofs], [roof.high - roof.median for roof in roofs]],
        fmt="_k",
        markersize=60,
        linewidth=0.8,
        label=f"memory read by {figures.threads} threads, meanwhile",
    )
    axes.bar(range(len(figures.steps)), [weights_rate(step) for step in figures.steps], label="weights")
    axes.bar(
        range(len(figures.steps)),
        [kv_rate(step) for step in figures.steps],
        bottom=[weights_rate(step) for step in figures.steps],
        label="keys and values",
    )
    labels = [f"{step.run}\n{step.bandwidth_share:.0%}" for step in figures.steps]
    axes.set_xticks(range(len(figures.steps)), labels, fontsize="small")
    axes.set_ylabel("GB/s that a decode step reads")
    axes.set_title(f"{figures.model}, {figures.facts and next(iter(figures.facts))}")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small", loc="lower right")
    figure.tight_layout()
    # No date in the file and fixed ids, so that the same figures give the same bytes.
    figure.savefig(target, metadata={"Date": None})
    pyplot.close(figure)


def weights_rate(step: Step) -> float:
    """GB a second of weights."""
    return step.weight_bytes / step.step_ms / 1e6


def kv_rate(step: Step) -> float:
    """GB a second of keys and values."""
    return step.kv_bytes / step.step_ms / 1e6
