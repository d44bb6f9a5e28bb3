"""A sweep as a picture: time of each way to run by the model's own, with its error (needs the `report` extra)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from magnitude.picture import picture
from magnitude.policy.learned import Entry
from magnitude.tuning.sweep import Compared

# Errors shown: 95 % of a normal distribution.
SHOWN_ERRORS = 1.96
CHOSEN, OTHER = "#0072b2", "#999999"  # told apart by colour-blind readers too (Okabe and Ito)


def plot(title: str, compared: Sequence[Compared], entries: Sequence[Entry], target: Path) -> None:
    """A panel for each situation; below 1 is faster. Raises `ConfigError` as `picture.picture`."""
    height = 1.2 + sum(0.8 + 0.3 * len(_rows(compared, entry)) for entry in entries)
    ratios = [1 + len(_rows(compared, entry)) for entry in entries] or [1]
    with picture(target, max(1, len(entries)), figsize=(9, height), squeeze=False, height_ratios=ratios) as (
        figure,
        panels,
    ):
        for (panel,), entry in zip(panels, entries, strict=False):
            _panel(panel, entry, _rows(compared, entry))
        panels[-1][0].set_xlabel("time by that of the model's own session (less is faster)")
        figure.suptitle(title)


def _rows(compared: Sequence[Compared], entry: Entry) -> list[Compared]:
    mine = [one for one in compared if (one.step.part, one.step.key) == (entry.part, entry.key)]
    return [one for one in mine if not one.refused]


def _panel(panel: Any, entry: Entry, rows: Sequence[Compared]) -> None:
    names = [f"{one.step.challenger.choice_id} ({one.step.stage})" for one in rows]
    for at, one in enumerate(rows):
        colour = CHOSEN if one.step.challenger == entry.chosen else OTHER
        reach = SHOWN_ERRORS * one.error * one.ratio
        panel.errorbar([one.ratio], [at], xerr=[reach], fmt="o", color=colour, capsize=3)
    panel.axvline(1.0, color="black", linewidth=0.8)
    panel.set_yticks(range(len(names)), names, fontsize=8)
    panel.set_ylim(-0.6, len(names) - 0.4)
    panel.invert_yaxis()
    panel.set_title(f"{entry.part}, {entry.key}: {entry.chosen.choice_id}", fontsize=9, loc="left")
