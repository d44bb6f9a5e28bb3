"""Side by side: every contender in every round, so that what disturbs the machine disturbs all alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bench.contender import ContenderFailed, ContenderPlan, Worker
from bench.machine import Machine
from bench.memory import MemoryUse, read_memory
from bench.spread import Spread, paired_ratio

OURS = "magnitude"
PROMPT_LENGTHS = (32, 256, 1024)
# Tokens decoded behind a prompt: enough to average over, few enough to stay near the prompt's context.
DECODE_STEPS = 48
# At a prompt this short, decode says little that the 256-token prompt does not.
SHORTEST_DECODE_CONTEXT = 256
# Positions of every contender's KV cache: the longest prompt and its answer, rounded up.
CONTEXT = 2048
# Idle threads of some runtimes spin for a while after a run; they are given time to fall asleep before the next
# contender starts.
SETTLE_S = 0.1
WARM_UP_ROUNDS = 1
# Ids below are special tokens in most vocabularies; the upper end fits every vocabulary met so far.
PROMPT_IDS = (100, 32_000)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one contender: every round's value, the spread, and ours/theirs paired by round."""

    unit: str
    rounds: list[float]
    spread: Spread
    ours_over_theirs: Spread | None = None


class ContenderResult(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found out about one contender. `figures` by name, for example `prefill 256`."""

    name: str
    source: str
    source_bytes: int
    facts: dict[str, str]
    figures: dict[str, Figures]
    memory_libraries: MemoryUse
    memory_loaded: MemoryUse
    memory_end: MemoryUse


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One run of all contenders."""

    machine: Machine
    threads: int
    context: int
    rounds: int
    contenders: list[ContenderResult]
    missing: dict[str, str]  # contenders that could not be measured, and why


def prompt_ids(length: int, round_number: int) -> list[int]:
    """The prompt of a round: the same for all contenders, new in each round, so that no prefix can be reused.

    Random ids will do: the work of a dense graph does not depend on them.
    """
    source = random.Random(f"{length}/{round_number}")
    return [source.randrange(*PROMPT_IDS) for _ in range(length)]


def compare(
    plans: Sequence[ContenderPlan],
    machine: Machine,
    *,
    rounds: int,
    progress: Callable[[str], None],
) -> Comparison:
    """Load all contenders, warm them up, measure `rounds` interleaved rounds, read their memory, end them."""
    workers: list[Worker] = []
    missing: dict[str, str] = {}
    memory: dict[str, list[MemoryUse]] = {}
    values: dict[str, dict[str, list[float]]] = {}
    try:
        for plan in plans:
            progress(f"loading {plan.name}")
            worker = Worker(plan)
            workers.append(worker)
            try:
                worker.start()
                memory[plan.name] = [_memory(worker)]
                worker.load(machine.threads, CONTEXT)
                memory[plan.name].append(_memory(worker))
            except ContenderFailed as error:
                missing[plan.name] = str(error)
                workers.remove(worker)
                worker.stop()
        for number in range(-WARM_UP_ROUNDS, rounds):
            progress("warming up" if number < 0 else f"round {number + 1} of {rounds}")
            for length in PROMPT_LENGTHS:
                for worker in workers:
                    figures = measure(worker, length, number)
                    if number >= 0:
                        for name, value in figures.items():
                            values.setdefault(worker.plan.name, {}).setdefault(name, []).append(value)
        for worker in workers:
            memory[worker.plan.name].append(_memory(worker))
    finally:
        for worker in workers:
            worker.stop()
    return Comparison(
        machine=machine,
        threads=machine.threads,
        context=CONTEXT,
        rounds=rounds,
        contenders=[_result(worker, values, memory[worker.plan.name]) for worker in workers],
        missing=missing,
    )


def measure(worker: Worker, length: int, round_number: int) -> dict[str, float]:
    """The figures of one generation, by name."""
    time.sleep(SETTLE_S)
    steps = DECODE_STEPS if length >= SHORTEST_DECODE_CONTEXT else 0
    times = worker.generate(prompt_ids(length, round_number), steps)
    figures = {f"prefill {length}": length / times.prefill_s, f"ttft {length}": times.ttft_s * 1000}
    if steps:
        figures[f"decode {length}"] = steps / times.decode_s
    return figures


def unit_of(figure: str) -> str:
    return "ms" if figure.startswith("ttft") else "tokens/s"


def _result(worker: Worker, values: dict[str, dict[str, list[float]]], memory: list[MemoryUse]) -> ContenderResult:
    name = worker.plan.name
    ours = values.get(OURS, {})
    figures = {
        figure: Figures(
            unit=unit_of(figure),
            rounds=rounds,
            spread=Spread.of(rounds),
            ours_over_theirs=paired_ratio(ours[figure], rounds) if figure in ours and name != OURS else None,
        )
        for figure, rounds in values[name].items()
    }
    libraries, loaded, end = memory
    return ContenderResult(
        name=name,
        source=Path(worker.plan.source).name,
        source_bytes=source_bytes(Path(worker.plan.source)),
        facts=worker.facts,
        figures=figures,
        memory_libraries=libraries,
        memory_loaded=loaded,
        memory_end=end,
    )


def source_bytes(source: Path) -> int:
    """Bytes of the weights: a GGUF file, or graph and external data of a folder."""
    if source.is_file():
        return source.stat().st_size
    return sum(path.stat().st_size for path in source.iterdir() if path.name.startswith("model.onnx"))


def _memory(worker: Worker) -> MemoryUse:
    source = Path(worker.plan.source).absolute()
    return read_memory(worker.pid, source if source.is_dir() else source.parent)
