"""A comparison of `magnitude attribute` as a picture (needs the `report` extra)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from magnitude.picture import picture

if TYPE_CHECKING:
    from magnitude.policy.attribution import Attribution, Block

# Told apart by colour-blind readers too (Okabe and Ito).
COLOURS = {"off": "#d55e00", "on": "#0072b2"}


def plot(found: Attribution, blocks: Sequence[Block], title: str, target: Path) -> None:
    """Write the ratios with their intervals, and what each block took in its order. Raises `ConfigError` as
    `picture.picture`."""
    with picture(target, 1, 2, figsize=(12, 4.5)) as (figure, (left, right)):
        figure.suptitle(title, fontsize="medium")
        shown = [one for one in reversed(found.figures) if one.ratio is not None]
        for row, one in enumerate(shown):
            assert one.ratio is not None
            if one.verdict != "too few rounds":  # then the interval means nothing
                left.plot((one.ratio.low, one.ratio.high), (row, row), color=COLOURS["on"], linewidth=2)
            left.plot(one.ratio.value, row, "o", color=COLOURS["on"])
        left.axvline(1.0, color="black", linewidth=0.8, linestyle="--")
        left.set_yticks(range(len(shown)), [one.name for one in shown])
        left.set_xlabel("loop on / loop off, with 95 % intervals (below 1: the loop saves)")
        left.grid(alpha=0.25, axis="x")
        for mode, colour in COLOURS.items():
            at = [(number, block.took_s) for number, block in enumerate(blocks, 1) if block.mode == mode]
            right.plot([x for x, _ in at], [y for _, y in at], "o", color=colour, label=f"loop {mode}")
        right.set_ylim(bottom=0, top=1.2 * max(block.took_s for block in blocks))
        right.xaxis.get_major_locator().set_params(integer=True)
        right.set_xlabel("block of work, in their order")
        right.set_ylabel("seconds for the whole work")
        right.grid(alpha=0.25)
        right.legend(loc="lower right")
