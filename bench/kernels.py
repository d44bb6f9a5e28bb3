"""Kernel plans beside the serving graph and llama.cpp: the same runs by all of them, in turns."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.bandwidth import MemoryReader
from bench.contender import ContenderPlan, Worker
from bench.memory import MemoryUse, read_memory
from bench.spread import Spread, paired_ratio
from magnitude.models.catalogue import open_folder
from magnitude.models.description import KERNEL_KV8_GRAPH_FILE
from magnitude.models.golden import agreement, merged
from magnitude.models.graphs.kernel_plan import write_kernel_plan
from magnitude.models.importing.golden_texts import golden_ids

SERVING = "serving graph"
ROWS = 4
STEPS = 16
PROMPT_TOKENS = 512
# Of each golden text: longer than most of them are.
TEXT_TOKENS = 128
# Room behind the longest context for the steps, and the least that llama.cpp gives a sequence.
SPARE = 96


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Decode steps of `rows` rows at position `past`; `rows` 0: a prompt of `PROMPT_TOKENS`."""

    rows: int
    past: int

    @property
    def name(self) -> str:
        if not self.rows:
            return f"prompt of {PROMPT_TOKENS}"
        return f"{self.rows} row{'s' if self.rows > 1 else ''} at {self.past:,}"


RUNS = (
    Run(rows=1, past=32),
    Run(rows=1, past=480),
    Run(rows=1, past=2000),
    Run(rows=1, past=4000),
    Run(rows=ROWS, past=480),
    Run(rows=0, past=0),
)


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens a second of one contender in one run, and how many times as fast as it the first kernel plan is."""

    run: str
    contender: str
    tokens_per_s: Spread
    kernels_times: Spread


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What one decode step of a kernel plan reads, and how long its operators take of the step, as means over all
    steps of all rounds. `read_rate`: bytes a second that as many threads read in the same rounds; `bandwidth_share`:
    what the step reads a second, of the median of these."""

    run: str
    step_ms: float
    weight_bytes: int
    kv_bytes: int
    read_rate: Spread
    bandwidth_share: float
    operators_us: dict[str, float]
    calls: dict[str, float]


class KernelFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one model, by contender."""

    model: str
    threads: int
    facts: dict[str, dict[str, str]]  # by contender
    kl_nats: dict[str, float]  # from float activations and the source's own weights, over the golden texts
    rates: tuple[Rate, ...]
    steps: tuple[Step, ...]
    memory: dict[str, MemoryUse]
    weights_file_bytes: int


def contenders(folder: Path, peers: Sequence[tuple[str, Path]], peers_python: str) -> list[ContenderPlan]:
    """The graphs of the model in `folder`, the kernel plans first, and llama.cpp on each of `peers` (label, GGUF)
    with flash attention and without."""
    model = open_folder(folder)
    graphs = [*model.kernel_graphs, KERNEL_KV8_GRAPH_FILE, model.graph_file]
    plans = [
        ContenderPlan(
            name=SERVING if graph == model.graph_file else graph,
            module="bench.peers.bare_graph_peer",
            python=sys.executable,
            source=str(folder),
            arguments=(str(ROWS), graph),
        )
        for graph in graphs
        if (folder / graph).is_file()
    ]
    for label, file in peers:
        plans += [
            ContenderPlan(
                name=f"llama.cpp {label}{', flash' if flash == 'on' else ''}",
                module="bench.peers.llama_cpp_peer",
                python=peers_python,
                source=str(file),
                arguments=("--flash-attention", flash, "--sequences", str(ROWS)),
            )
            for flash in ("off", "on")
        ]
    return plans


def with_plan_over_bytes(folder: Path, into: Path) -> Path:
    """The model in `folder` once more in `into`, which is made, with the plan over a cache of bytes beside its other
    graphs, where it allows one. Files are linked where both folders are on one file system."""
    into.mkdir(parents=True)
    for file in folder.iterdir():
        try:
            (into / file.name).hardlink_to(file)
        except OSError:
            shutil.copyfile(file, into / file.name)
    write_kernel_plan(into / open_folder(into).graph_file, into / KERNEL_KV8_GRAPH_FILE, over_bytes=True)
    return into


def measure_kernels(
    folder: Path,
    plans: Sequence[ContenderPlan],
    *,
    threads: int,
    rounds: int,
    runs: Sequence[Run] = RUNS,
    progress: Callable[[str], None],
) -> KernelFigures:
    """All `runs` by all of `plans`, the first of which is a kernel plan. Raises `ContenderFailed`."""
    context = max(run.past for run in runs) + max(SPARE, PROMPT_TOKENS if any(not run.rows for run in runs) else 0)
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for plan in plans:
            progress(f"loading {plan.name}")
            worker = workers[plan.name] = Worker(plan)
            stack.callback(worker.stop)
            worker.start()
            worker.load(threads, context)
        progress("distance from float")
        kl = distances(folder, workers, min(TEXT_TOKENS, context))
        reader = MemoryReader(threads)
        rates: list[Rate] = []
        steps: list[Step] = []
        for run in runs:
            speeds, read, costs = _speeds(run, workers, reader, rounds, progress)
            first = next(iter(speeds))
            rates += [
                Rate(
                    run=run.name,
                    contender=name,
                    tokens_per_s=Spread.of(values),
                    kernels_times=paired_ratio(speeds[first], values),
                )
                for name, values in speeds.items()
            ]
            if run.rows and costs:
                taken_s = sum(run.rows * STEPS / rate for rate in speeds[first])
                steps.append(step_of(run.name, taken_s, costs, rounds * STEPS, Spread.of(read)))
        memory = {name: read_memory(worker.pid, folder) for name, worker in workers.items()}
        return KernelFigures(
            model=folder.name,
            threads=threads,
            facts={name: worker.facts for name, worker in workers.items()},
            kl_nats=kl,
            rates=tuple(rates),
            steps=tuple(steps),
            memory=memory,
            weights_file_bytes=(folder / "model.onnx.data").stat().st_size,
        )


def _speeds(
    run: Run, workers: dict[str, Worker], reader: MemoryReader, rounds: int, progress: Callable[[str], None]
) -> tuple[dict[str, list[float]], list[float], dict[str, dict[str, int]]]:
    """Tokens a second by contender and round, how fast memory was read in these, and what operators of the first one
    cost over all rounds."""
    for name, worker in workers.items():
        progress(f"{run.name}: {name} gets there")
        _seconds(run, worker)
    first = next(iter(workers.values()))
    first.costs()
    speeds: dict[str, list[float]] = {name: [] for name in workers}
    read = []
    for round_ in range(rounds):
        progress(f"{run.name}: round {round_ + 1} of {rounds}")
        for name, worker in workers.items():
            tokens = run.rows * STEPS if run.rows else PROMPT_TOKENS
            speeds[name].append(tokens / _seconds(run, worker))
        read.append(reader.rate())
    return speeds, read, first.costs()


def _seconds(run: Run, worker: Worker) -> float:
    return worker.steps(run.past, run.rows, STEPS) if run.rows else worker.prompt(PROMPT_TOKENS)


def step_of(run: str, taken_s: float, costs: dict[str, dict[str, int]], steps: int, read: Spread) -> Step:
    """What a step of `run` costs, from what `steps` of them took and what the counters say of them."""
    step_s = taken_s / steps
    weights = sum(cost["weight_bytes"] for cost in costs.values()) / steps
    kv = sum(cost["kv_bytes"] for cost in costs.values()) / steps
    return Step(
        run=run,
        step_ms=1000 * step_s,
        weight_bytes=round(weights),
        kv_bytes=round(kv),
        read_rate=read,
        bandwidth_share=(weights + kv) / step_s / read.median,
        operators_us={name: cost["nanoseconds"] / steps / 1000 for name, cost in costs.items() if cost["calls"]},
        calls={name: cost["calls"] / steps for name, cost in costs.items() if cost["calls"]},
    )


def distances(folder: Path, workers: dict[str, Worker], tokens: int) -> dict[str, float]:
    """Mean KL divergence of each contender from the graph with float activations, over the first `tokens` of each
    golden text; empty for a model whose tokenizer makes nothing of them, or that keeps no such graph."""
    model = open_folder(folder)
    texts = [ids[:tokens] for ids in golden_ids((folder / "tokenizer.json").read_text(encoding="utf-8"))]
    if not model.fallback_graph_file or not texts:
        return {}
    reference = Worker(
        ContenderPlan(
            name="float activations",
            module="bench.peers.bare_graph_peer",
            python=sys.executable,
            source=str(folder),
            arguments=("1", model.fallback_graph_file),
        )
    )
    try:
        reference.start()
        reference.load(1, 256)
        exact = _logits(reference, texts)
    finally:
        reference.stop()
    return {
        name: merged(
            [agreement(right, rows) for right, rows in zip(exact, _logits(worker, texts), strict=True)]
        ).kl_nats
        for name, worker in workers.items()
    }


def _logits(worker: Worker, texts: Sequence[list[int]]) -> list[NDArray[np.float32]]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "logits.npy"
        for ids in texts:
            worker.logits(ids, file)
            found.append(np.load(file))
    return found
