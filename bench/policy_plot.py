"""Timelines of the strategy loop, on a simulated board and through a changing load on the real service: what it
chose, and what work took."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bench.policy_figures import DEFAULT, LOOP, LoadRun, by_contender, verdict
from magnitude.board.profiles import load_profile
from magnitude.picture import picture
from magnitude.policy.strategy import Strategy
from magnitude.policy.terms import Effect, Event, RunsSeen
from magnitude.simulate.closed_loop import simulate
from magnitude.simulate.controllers import GovernedController
from magnitude.simulate.engine import Loop
from magnitude.simulate.load import read_load
from magnitude.simulate.optimized import optimized_engine

# Okabe and Ito's colours, told apart by colour-blind readers too.
PROMPTS, ANSWERS = "#0072b2", "#d55e00"
PANELS = ("threads", "decode step, ms", "prompt's token, ms")


class Timeline(msgspec.Struct, kw_only=True):
    """Seconds of the board's time with what was in force from then on (threads for prompts, for answers), and with
    what a run took: seconds of a step or of a prompt's token."""

    chosen: list[tuple[float, int, int]] = []
    steps: list[tuple[float, float]] = []
    pieces: list[tuple[float, float]] = []
    switches: list[float] = []


class Watched:
    """A strategy loop, and what goes in and out of it."""

    def __init__(self, loop: Loop) -> None:
        self.timeline = Timeline()
        self._loop = loop

    @property
    def strategy(self) -> Strategy:
        return self._loop.strategy

    @property
    def wake_s(self) -> float | None:
        return self._loop.wake_s

    def apply(self, event: Event, now_s: float) -> Sequence[Effect]:
        line = self.timeline
        if isinstance(event, RunsSeen) and event.runs:
            each_s = event.total_s / event.runs
            if event.part == "decode":
                line.steps.append((now_s, each_s))
            elif event.part == "prefill":
                line.pieces.append((now_s, each_s / event.tokens))
        effects = self._loop.apply(event, now_s)
        now = (self.strategy.prefill.threads, self.strategy.decode.threads)
        if not line.chosen or line.chosen[-1][1:] != now:
            line.chosen.append((now_s, *now))
        return effects


def timeline(board: str, load_name: str, hours: float) -> Timeline:
    """The loop beside the thermal governor, from an engine that takes all cores."""
    profile, load = load_profile(board), read_load(load_name)
    engine = optimized_engine(profile, load)
    engine.loop = watched = Watched(engine.loop)
    simulate(profile, load, GovernedController(profile), hours=hours, engine=engine)
    watched.timeline.switches = [at_s for at_s, decided in engine.decided if decided.kind in ("switch", "revert")]
    return watched.timeline


def draw(board: str, load_name: str, hours: float, target: Path) -> None:
    """Write it. Raises `ConfigError` as `picture.picture`."""
    line = timeline(board, load_name, hours)
    with picture(target, len(PANELS), figsize=(10, 7), sharex=True) as (_, panels):
        _draw(panels, line, hours)
        panels[0].set_title(
            f"Simulated: {load_profile(board).title}, load {load_name!r}, strategy loop and thermal governor, "
            "begun with a thread on every core",
            fontsize="medium",
        )


def _draw(panels: Any, line: Timeline, hours: float) -> None:
    minutes = [at_s / 60 for at_s, *_ in line.chosen] + [60 * hours]
    for index, (colour, name) in enumerate(((PROMPTS, "prompts"), (ANSWERS, "answers"))):
        values = [each[1 + index] for each in line.chosen]
        panels[0].step(minutes, [*values, values[-1]], where="post", color=colour, label=name)
    panels[0].legend(fontsize="small", loc="upper right")
    panels[0].set_ylim(bottom=0)
    for panel, points, colour in ((panels[1], line.steps, ANSWERS), (panels[2], line.pieces, PROMPTS)):
        panel.plot(
            [at_s / 60 for at_s, _ in points],
            [1e3 * each_s for _, each_s in points],
            ".",
            color=colour,
            markersize=1.5,
        )
        panel.set_ylim(bottom=0)
    for panel, text in zip(panels, PANELS, strict=True):
        for at_s in line.switches:
            panel.axvline(at_s / 60, color="black", linewidth=0.7, linestyle="--")
        panel.set_ylabel(text)
        panel.grid(alpha=0.25)
    panels[-1].set_xlabel("minutes (dashed: a switch)")


def draw_load(runs: Sequence[LoadRun], target: Path) -> None:
    """The loop's last round through the changing load: threads by phase, and the time of each phase beside the best
    fixed strategy there and the shipped default (medians). Raises `ConfigError` as `picture.picture`."""
    table, judged = by_contender(runs), verdict(runs)
    last = table[LOOP][-1]
    ends = list(itertools.accumulate(phase.seconds for phase in last.phases))
    with picture(target, 2, figsize=(10, 6), sharex=True) as (_, panels):
        for place, phase in enumerate(last.phases):
            begin, end = ends[place] - phase.seconds, ends[place]
            if "half CPU" in phase.phase:
                for panel in panels:
                    panel.axvspan(begin, end, color="black", alpha=0.07)
            answers, prompts = (int(part.split()[0]) for part in last.strategies[place].split(", ")[:2])
            panels[0].plot([begin, end], [answers + 0.03] * 2, color=ANSWERS, label="answers" if not place else None)
            panels[0].plot([begin, end], [prompts - 0.03] * 2, color=PROMPTS, label="prompts" if not place else None)
            for name, colour in (
                (DEFAULT, "#999999"),
                (list(judged.oracle.values())[place], "#009e73"),
                (LOOP, "black"),
            ):
                shown = "best fixed strategy of the phase" if name not in (DEFAULT, LOOP) else name
                seconds = median(run.phases[place].seconds for run in table[name])
                panels[1].plot([begin, end], [seconds] * 2, color=colour, label=shown if not place else None)
            panels[1].text(
                (begin + end) / 2, 0, phase.phase.split(",")[0], ha="center", va="bottom", fontsize=7, rotation=90
            )
        panels[0].set_ylabel("threads")
        panels[0].set_title(
            "The strategy loop through a changing load; grey: half of the processor", fontsize="medium"
        )
        panels[1].set_ylabel("seconds of the phase")
        panels[1].set_xlabel("seconds")
        for panel in panels:
            panel.set_ylim(bottom=0)
            panel.grid(alpha=0.25)
            panel.legend(fontsize="small")
