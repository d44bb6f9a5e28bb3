"""Graph runs as running aggregates: a moving mean and a P95 for each shape, never single runs."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from magnitude.engine.pace import phase_of
from magnitude.engine.protocol import StepKind, Steps
from magnitude.feedback.running import RunningFigures

# Shapes told apart: models, kinds, rows and rounded lengths. Far more than one board runs; beyond it the oldest goes.
MAX_SHAPES = 256


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one shape: `rows` sequences of `tokens` new positions (rounded up to a power of two above 8) each.
    Recent runs weigh more."""

    model: str
    kind: StepKind
    rows: int
    tokens: int
    runs: int
    mean_s: float
    p95_s: float


class RunTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of all engines went since the service was started: runs of prompts, texts and tensors, runs of
    answers, and pauses between runs while there was work."""

    prefill_s: float = 0.0
    decode_s: float = 0.0
    paused_s: float = 0.0


class SingleSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Decode steps of one sequence: so many `runs`, and what one takes now."""

    runs: int
    mean_s: float


class RunSeries:
    """Collects the engine's reports. The P95 is that of their means, each over half a second of runs, and each counts
    as many times as there were runs in it."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.times = RunTimes()
        self._series: dict[tuple[str, StepKind, int, int], RunningFigures] = {}
        self._runs: dict[tuple[str, StepKind, int, int], int] = {}

    def add(self, steps: Steps) -> None:
        spent = {"prefill": self.times.prefill_s, "decode": self.times.decode_s}
        for group in steps.groups:
            spent[phase_of(group.kind)] += group.total_s
        self.times = RunTimes(
            prefill_s=spent["prefill"], decode_s=spent["decode"], paused_s=self.times.paused_s + steps.paused_s
        )
        now_s = self._monotonic()
        for group in steps.groups:
            key = (group.model, group.kind, group.rows, group.tokens)
            if key not in self._series and len(self._series) >= MAX_SHAPES:
                oldest = next(iter(self._series))
                del self._series[oldest], self._runs[oldest]
            self._series.setdefault(key, RunningFigures()).add(group.total_s / group.runs, now_s, group.runs)
            self._runs[key] = self._runs.get(key, 0) + group.runs

    def single_steps(self) -> dict[str, SingleSteps]:
        """By model, as far as it had any."""
        return {
            model: SingleSteps(runs=self._runs[model, kind, rows, tokens], mean_s=series.mean)
            for (model, kind, rows, tokens), series in self._series.items()
            if (kind, rows, tokens) == ("decode", 1, 1)
        }

    def figures(self) -> list[RunFigures]:
        return [
            RunFigures(
                model=model,
                kind=kind,
                rows=rows,
                tokens=tokens,
                runs=self._runs[model, kind, rows, tokens],
                mean_s=series.mean,
                p95_s=series.quantile(0.95),
            )
            for (model, kind, rows, tokens), series in sorted(self._series.items())
        ]
