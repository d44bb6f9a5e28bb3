"""A simulated run, or several beside each other, as a picture (needs the `report` extra)."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from magnitude.board.profile import BoardProfile
from magnitude.picture import picture
from magnitude.simulate.trace import Rows, Summary, Trace

# Points across the picture: more would not be seen, and make an SVG of megabytes.
POINTS = 240
# One colour a run, told apart by colour-blind readers too (Okabe and Ito).
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7")
PANELS = ("chip, °C", "clock, GHz", "tokens/s (minute)", "between tokens, ms", "J per token so far")
# A hard limit further above the soft one would only squeeze what is to be seen.
FAR_C = 15.0
NAMES = {"off": "kernel and firmware alone", "magnitude": "thermal governor"}


def plot(columns: Sequence[tuple[BoardProfile, Sequence[Trace]]], target: Path) -> None:
    """Write temperature, clock, tokens a second, time between tokens and energy over time: a column a board, all its
    runs in each. Raises `ConfigError` as `picture.picture`."""
    size = (2 + 7 * len(columns), 11)
    with picture(target, len(PANELS), len(columns), figsize=size, sharex="col", squeeze=False) as (_, grid):
        for column, (profile, traces) in enumerate(columns):
            panels = grid[:, column]
            for trace, colour in zip(traces, COLOURS, strict=False):
                _draw(panels, trace, colour)
            _decorate(panels, profile, traces[0].summary)


def _decorate(panels: Any, profile: BoardProfile, said: Summary) -> None:
    trips = profile.trips
    panels[0].axhline(
        trips.soft_c, color="black", linewidth=0.8, linestyle="--", label=f"throttles from {trips.soft_c:g} °C"
    )
    if trips.hard_c < trips.soft_c + FAR_C:
        panels[0].axhline(trips.hard_c, color="black", linewidth=0.8, label=f"hard limit {trips.hard_c:g} °C")
    for panel, text in zip(panels, PANELS, strict=True):
        panel.set_ylabel(text)
        panel.grid(alpha=0.25)
    panels[-1].set_xlabel("minutes")
    panels[0].legend(fontsize="small", loc="lower right")
    panels[0].set_title(
        f"Simulated: {profile.title}, load {said.load!r}, {said.ambient_c:g} °C around", fontsize="medium"
    )


def _draw(panels: Any, trace: Trace, colour: str) -> None:
    rows = trace.rows
    width = max(1, len(rows) // POINTS)
    minutes = [(start + width / 2) / 60 for start in range(0, len(rows), width)]
    name = NAMES.get(trace.summary.governor, trace.summary.governor)
    panels[0].plot(minutes, _thinned(rows.temp_c, width, max), color=colour, linewidth=1, label=name)
    panels[1].plot(
        minutes, [khz / 1e6 for khz in _thinned(rows.effective_khz, width, _mean)], color=colour, linewidth=1
    )
    panels[2].plot(
        minutes, _thinned(array("f", _running_mean(rows.tokens_s, 60)), width, _mean), color=colour, linewidth=1
    )
    gaps = _thinned(rows.inter_token_s, width, max)
    panels[3].plot(minutes, [gap * 1e3 if gap else float("nan") for gap in gaps], color=colour, linewidth=1)
    panels[4].plot(minutes, _energy(rows, width), color=colour, linewidth=1)


def _energy(rows: Rows, width: int) -> list[float]:
    """Joules a token from the start up to each point: the whole board's."""
    joules = list(itertools.accumulate(rows.board_w))
    tokens = list(itertools.accumulate(rows.tokens_s))
    ends = [min(start + width, len(rows)) - 1 for start in range(0, len(rows), width)]
    # The first minute has hardly any tokens yet, and its figure would set the scale.
    return [joules[end] / tokens[end] if end >= 60 and tokens[end] else float("nan") for end in ends]


def _thinned(values: array[float], width: int, by: Callable[[array[float]], float]) -> list[float]:
    return [by(values[start : start + width]) for start in range(0, len(values), width)]


def _running_mean(values: array[float], width: int) -> list[float]:
    sums = [0.0, *itertools.accumulate(values)]
    return [(sums[end] - sums[max(0, end - width)]) / min(width, end) for end in range(1, len(values) + 1)]


def _mean(values: array[float]) -> float:
    return sum(values) / len(values)
