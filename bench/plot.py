"""The ratios to the peers as a picture (needs the `report` extra)."""

from __future__ import annotations

from pathlib import Path

from bench.compare import OURS, Comparison


def plot_ratios(comparison: Comparison, target: Path) -> None:
    """Write a bar chart, one group a figure and one bar a peer, whiskers from the smallest to the largest round.

    Above 1 we are ahead: times are turned round, so that they read like rates. Raises `ImportError` without
    matplotlib.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "magnitude"
    from matplotlib import pyplot

    peers = [contender for contender in comparison.contenders if contender.name != OURS]
    figures = list(peers[0].figures) if peers else []
    figure, axes = pyplot.subplots(figsize=(10, 4.2))
    width = 0.8 / max(1, len(peers))
    for number, peer in enumerate(peers):
        places, heights, below, above = [], [], [], []
        for place, name in enumerate(figures):
            ratio = peer.figures[name].ours_over_theirs
            if ratio is None:
                continue
            middle, low, high = ratio.median, ratio.low, ratio.high
            if peer.figures[name].unit == "ms":
                middle, low, high = 1 / middle, 1 / high, 1 / low
            places.append(place + (number - (len(peers) - 1) / 2) * width)
            heights.append(middle)
            below.append(middle - low)
            above.append(high - middle)
        axes.bar(places, heights, width, yerr=[below, above], capsize=2, label=f"against {peer.name}")
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(figures)), figures)
    axes.set_ylabel("speed of magnitude / speed of peer")
    axes.set_title(f"{comparison.machine.cpu_model}, {comparison.threads} threads, {comparison.rounds} rounds")
    axes.legend(fontsize="small")
    figure.tight_layout()
    # No date in the file and fixed ids, so that the same figures give the same bytes.
    figure.savefig(target, metadata={"Date": None})
    pyplot.close(figure)
