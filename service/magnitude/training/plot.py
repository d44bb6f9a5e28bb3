"""Expected gains with their intervals, as a picture (needs the `report` extra)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from magnitude.picture import picture
from magnitude.policy.trained import Gain, Method

# Told apart by colour-blind readers too (Okabe and Ito).
COLOURS: dict[Method, str] = {"table": "#0072b2", "tree": "#d55e00"}


def plot_gains(gains: Sequence[Gain], tolerance: float, target: Path) -> None:
    """Draw gains of whole parts, a line each, with the tolerance. Raises `ConfigError` as
    `picture.picture`."""
    shown = [gain for gain in gains if not gain.key]
    with picture(target, figsize=(8, 1.5 + 0.35 * len(shown))) as (_, panel):
        for line, gain in enumerate(shown):
            colour = COLOURS[gain.method]
            panel.plot([100 * gain.low, 100 * gain.high], [line, line], color=colour, linewidth=3, alpha=0.5)
            panel.plot([100 * gain.gain], [line], "o", color=colour)
        panel.axvline(0, color="black", linewidth=0.8)
        panel.axvline(-100 * tolerance, color="black", linewidth=0.8, linestyle=":")
        panel.set_yticks(
            range(len(shown)), [f"{gain.board}, {gain.model}: {gain.part} ({gain.method})" for gain in shown]
        )
        panel.invert_yaxis()
        panel.set_xlabel("time saved against the default, % (dotted: tolerance)")
