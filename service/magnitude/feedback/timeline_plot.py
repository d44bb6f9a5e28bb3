"""A timeline as a picture (needs the `report` extra): what was in force, how warm it was, and what tasks took."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from magnitude.feedback.records import FAILURES
from magnitude.feedback.timeline import Lane, Moment, TaskPoint, Timeline
from magnitude.picture import picture

# Told apart by colour-blind readers too (Okabe and Ito); a choice keeps its colour in all lanes.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#f0e442", "#d55e00", "#999999")
# A name is written into its span where it fits, at about so many characters to the picture's width.
CHARACTERS = 130
# What is marked across all panels, and how; other decisions are in the table.
MARKS = {"switch": ("black", "-"), "revert": ("#d55e00", "-"), "situation": ("black", ":")}
# Decisions of the others: a tick at the upper edge of the panel of temperatures.
TICKS = {"thermal": "#d55e00", "power": "#e69f00", "memory": "#cc79a7", "watch": "#999999"}


def draw(timeline: Timeline, target: Path) -> None:
    """Write the picture. Raises `ConfigError` as `picture.picture`."""
    unit_s, unit = _unit(timeline.since_s)
    lanes = timeline.lanes
    heights = [max(1.0, 0.45 * len(lanes)), 1.6, 2.2]
    size = (13, 2.4 + sum(heights))
    with picture(target, 3, figsize=size, sharex=True, height_ratios=heights) as (_, panels):
        _draw_lanes(panels[0], lanes, unit_s, timeline.since_s)
        _draw_heat(panels[1], timeline.tasks, timeline.decisions, unit_s)
        _draw_tasks(panels[2], timeline.tasks, unit_s)
        for panel in panels:
            _mark(panel, timeline.decisions, unit_s)
            panel.grid(alpha=0.25)
        panels[-1].set_xlim(-timeline.since_s / unit_s, 0)
        panels[-1].set_xlabel(f"{unit} before now")
        panels[0].set_title(
            "Strategy in force (line: switch, orange: taken back, dotted: the board changed)", fontsize=9
        )


def _unit(since_s: float) -> tuple[float, str]:
    for unit_s, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if since_s >= 3 * unit_s:
            return unit_s, name
    return 1.0, "seconds"


def _draw_lanes(panel: Any, lanes: Sequence[Lane], unit_s: float, since_s: float) -> None:
    names = list(dict.fromkeys(span.choice for lane in lanes for span in lane.spans))
    colours = dict(zip(names, itertools.cycle(COLOURS), strict=False))
    for row, lane in enumerate(reversed(lanes)):
        for span in lane.spans:
            long_s = span.begin_ago_s - span.end_ago_s
            panel.broken_barh(
                [(-span.begin_ago_s / unit_s, long_s / unit_s)], (row - 0.4, 0.8), facecolors=colours[span.choice]
            )
            if len(span.choice) <= CHARACTERS * long_s / since_s:
                middle = -(span.begin_ago_s + span.end_ago_s) / 2 / unit_s
                panel.text(middle, row, span.choice, ha="center", va="center", fontsize=7, color="white")
    panel.set_yticks(range(len(lanes)), [f"{lane.model}\n{lane.part}" for lane in reversed(lanes)], fontsize=7)
    panel.set_ylim(-0.6, max(0.6, len(lanes) - 0.4))
    for name in names:
        panel.plot([], [], color=colours[name], linewidth=6, label=name)
    if names:
        panel.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    else:
        _say(panel, "no strategy was recorded")


def _draw_heat(panel: Any, tasks: Sequence[TaskPoint], decisions: Sequence[Moment], unit_s: float) -> None:
    warm = [(task.ago_s, task.temperature_c) for task in tasks if task.temperature_c is not None]
    panel.plot([-ago_s / unit_s for ago_s, _ in warm], [temp_c for _, temp_c in warm], color="#0072b2", linewidth=1)
    held = [(task.ago_s, task.temperature_c) for task in tasks if task.throttled and task.temperature_c is not None]
    if held:
        x, y = [-ago_s / unit_s for ago_s, _ in held], [temp_c for _, temp_c in held]
        panel.scatter(x, y, s=12, color="#d55e00", label="held back", zorder=3)
    if not warm:
        _say(panel, "no temperature was recorded")
        panel.set_yticks([])
    for source, colour in TICKS.items():
        at = [-one.ago_s / unit_s for one in decisions if one.source == source]
        if at:
            panel.plot(
                at,
                [0.97] * len(at),
                "|",
                color=colour,
                markersize=8,
                transform=panel.get_xaxis_transform(),
                label=f"{source}: {len(at)}",
            )
    panel.set_ylabel("chip, °C")
    if held or any(one.source in TICKS for one in decisions):
        panel.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _draw_tasks(panel: Any, tasks: Sequence[TaskPoint], unit_s: float) -> None:
    shown = False
    for kind, colour in (("generate", "#0072b2"), ("embed", "#009e73"), ("infer", "#cc79a7")):
        for failed, marker in ((False, "."), (True, "x")):
            points = [
                (-task.ago_s / unit_s, task.run_s)
                for task in tasks
                if task.kind == kind and (task.outcome in FAILURES) is failed and task.run_s > 0
            ]
            if points:
                shown = True
                label = f"{kind}, failed" if failed else kind
                x, y = zip(*points, strict=True)
                panel.scatter(x, y, s=14, marker=marker, color=colour, label=label, linewidths=0.8)
    panel.set_ylabel("time of a task, s")
    if shown:
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("")
        panel.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    else:
        _say(panel, "no task was recorded")
        panel.set_yticks([])


def _say(panel: Any, text: str) -> None:
    panel.text(0.5, 0.5, text, transform=panel.transAxes, ha="center", va="center", fontsize=8)


def _mark(panel: Any, decisions: Sequence[Moment], unit_s: float) -> None:
    for one in decisions:
        if one.source == "strategy" and one.kind in MARKS:
            colour, style = MARKS[one.kind]
            panel.axvline(-one.ago_s / unit_s, color=colour, linestyle=style, linewidth=0.8)
