"""Encoders: memory by way of allocating, padding on real texts, and what gathering requests brings."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bench.contender import PROJECT
from bench.encoder_arena import MODES, ArenaResult
from bench.encoder_cost import RunCost, WaySpeed, run_cost, way_speeds
from bench.encoder_loads import Load, WayBack, measure_loads
from magnitude.engine.encoder_buckets import MAX_PADDING, padding_share, plan_runs
from magnitude.models.description import ModelDescription
from magnitude.models.manifest import describe, read_manifest
from magnitude.text.tokenizer import TextTokenizer


class Padding(msgspec.Struct, frozen=True, kw_only=True):
    """Runs and padding for `texts` texts at a time, with texts of different buckets joined or kept apart."""

    texts: int
    max_padding: float
    runs: float
    padding: float


class EncoderFigures(msgspec.Struct, frozen=True, kw_only=True):
    arena: list[ArenaResult]
    padding: list[Padding]
    loads: list[Load]
    way_back: WayBack
    speeds: list[WaySpeed]
    cost: RunCost


def measure_encoders(folder: Path, *, rounds: int, threads: int, progress: Callable[[str], None]) -> EncoderFigures:
    """All figures for the encoder in `folder`."""
    model = describe(folder, read_manifest(folder))
    texts = project_texts(TextTokenizer.load(folder / "tokenizer.json", model.special), model)
    arena = []
    for mode in MODES:
        progress(mode)
        command = [sys.executable, "-m", "bench.encoder_arena", mode, str(folder)]
        output = subprocess.run(command, check=True, capture_output=True, cwd=PROJECT).stdout
        arena.append(msgspec.json.decode(output, type=ArenaResult))
    progress("speed of the ways of allocating")
    speeds = way_speeds(folder, rounds=2 * rounds, threads=threads)
    progress("cost of a run")
    cost = run_cost(folder, rounds=2 * rounds, threads=threads)
    progress("loads")
    loads, way_back = asyncio.run(measure_loads(model, texts, rounds=rounds, threads=threads))
    padding = padding_figures(list(map(len, texts)), model)
    return EncoderFigures(arena=arena, padding=padding, loads=loads, way_back=way_back, speeds=speeds, cost=cost)


def project_texts(tokenizer: TextTokenizer, model: ModelDescription) -> list[list[int]]:
    """Sentences and paragraphs of this project's pages, as the encoder's inputs."""
    assert model.encoder is not None, f"{model.name} is no encoder"
    texts: list[str] = []
    for page in [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").glob("*.md"))]:
        for paragraph in re.split(r"\n\s*\n", page.read_text(encoding="utf-8")):
            prose = paragraph.strip()
            if len(prose) > 20 and not prose.startswith(("|", "```", "    ")):
                texts += [prose, *(part for part in re.split(r"(?<=[.!?])\s+", prose) if len(part) > 10)]
    return [tokenizer.encode_single(text, limit=model.encoder.max_tokens).ids for text in texts]


def padding_figures(lengths: Sequence[int], model: ModelDescription) -> list[Padding]:
    assert model.encoder is not None
    figures = []
    for count, limit in itertools.product((4, 16), (0.0, MAX_PADDING, 0.25, 1.0)):
        draw = random.Random(0)
        runs = 0
        shares = []
        for _ in range(300):
            drawn = draw.choices(lengths, k=count)
            plans = plan_runs(drawn, model.encoder.max_tokens, max_padding=limit)
            runs += len(plans)
            shares.append(padding_share(drawn, plans))
        figures.append(Padding(texts=count, max_padding=limit, runs=runs / 300, padding=statistics.fmean(shares)))
    return figures
