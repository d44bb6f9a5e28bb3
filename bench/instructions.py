"""Instructions that one token takes on Arm, counted by an emulator: kernel plans beside the serving graph."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bench.contender import PROJECT
from bench.emulated.guest import PIECE
from magnitude.models.catalogue import open_folder


class Step(msgspec.Struct, frozen=True):
    """One decode step of `rows` rows at position `past`."""

    rows: int
    past: int

    @property
    def name(self) -> str:
        return f"{self.rows} row{'s' if self.rows > 1 else ''} at {self.past:,}"


STEPS = (Step(1, 32), Step(1, 480), Step(1, 2000), Step(4, 480))


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """`cpu`: QEMU's name and switches. `part`: Arm's number of the core, by which ONNX Runtime knows it."""

    name: str
    cpu: str
    part: int


# SVE and SME are off in the second one: what is asked is what i8mm gives, and no board of ours has them.
PROCESSORS = (
    Processor(name="Cortex-A76 (dot products)", cpu="cortex-a76", part=0xD0B),
    Processor(name="one with i8mm", cpu="max,sve=off,sme=off", part=0xD47),  # a Cortex-A710's number
)


class Counts(msgspec.Struct, frozen=True, array_like=True):
    """Instructions by kind, in the order in which `count.c` has them: all, loads and stores, vector and float
    arithmetic, and of these dot products and products of matrices of bytes."""

    all: int
    memory: int
    vector: int
    dot: int
    matrix: int


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What one token takes in `run`, as a mean over the run's tokens."""

    processor: str
    graph: str
    run: str
    instruction_set: str
    counts: Counts


class EmulationFailed(Exception):
    """The emulated program left with an error."""


def parse_counts(text: str) -> dict[int, Counts]:
    """The file that `count.c` writes: executed so far, by mark."""
    lines = [[int(word) for word in line.split()] for line in text.splitlines()]
    return {line[0]: msgspec.convert(line[1:], Counts) for line in lines}


def between(first: Counts, last: Counts, tokens: int) -> Counts:
    """A token's share of what was executed from one mark to the next."""
    begin, end = msgspec.to_builtins(first), msgspec.to_builtins(last)
    return msgspec.convert([round((b - a) / tokens) for a, b in zip(begin, end, strict=True)], Counts)


def by_run(marks: dict[int, Counts], steps: Sequence[Step]) -> dict[str, Counts]:
    """Of a guest that did `steps`, and a piece of a prompt after them. Raises `KeyError` for one that did not come to
    its end."""
    runs = {step.name: step.rows for step in steps} | {f"prompt, {PIECE} at once": PIECE}
    return {
        run: between(marks[2 * number], marks[2 * number + 1], tokens)
        for number, (run, tokens) in enumerate(runs.items())
    }


def cpu_description(part: int, cpus: int = 2) -> str:
    """What Linux says of such a processor in /proc/cpuinfo, as far as ONNX Runtime reads it: QEMU's user mode shows
    the host's, and ONNX Runtime ends where it finds no Arm core."""
    lines = ["CPU implementer\t: 0x41", "CPU architecture: 8", "CPU variant\t: 0x1", f"CPU part\t: {part:#x}"]
    return "".join(f"processor\t: {cpu}\n" + "\n".join(lines) + "\nCPU revision\t: 0\n\n" for cpu in range(cpus))


def measure_instructions(
    folder: Path,
    arm: Path,
    processors: Sequence[Processor] = PROCESSORS,
    steps: Sequence[Step] = STEPS,
    *,
    progress: Callable[[str], None],
) -> list[TokenCounts]:
    """Each graph of the model in `folder` on each processor, one thread, by what `scripts/emulated-arm` has put into
    `arm`. Raises `EmulationFailed`."""
    model = open_folder(folder)
    found = []
    for processor in processors:
        (arm / "root/proc/cpuinfo").write_text(cpu_description(processor.part))
        for graph in (*model.kernel_graphs, model.graph_file):
            progress(f"{processor.name}: {graph}")
            facts, marks = _emulate(folder, arm, processor.cpu, graph, steps)
            found += [
                TokenCounts(
                    processor=processor.name,
                    graph=graph,
                    run=run,
                    instruction_set=facts.get("instruction set", ""),
                    counts=counts,
                )
                for run, counts in by_run(marks, steps).items()
            ]
    return found


def _emulate(
    folder: Path, arm: Path, cpu: str, graph: str, steps: Sequence[Step]
) -> tuple[dict[str, str], dict[int, Counts]]:
    guest = PROJECT / "bench/emulated/guest.py"
    with tempfile.TemporaryDirectory() as scratch:
        counted = Path(scratch) / "counts"
        emulator = [str(arm / "qemu/usr/bin/qemu-aarch64"), "-cpu", cpu, "-L", str(arm / "root")]
        plugin = ["-plugin", f"{arm / 'count.so'},out={counted}"]
        program = [
            str(arm / "root/usr/bin/python3.11"),
            str(guest),
            str(folder),
            graph,
            *(f"{step.rows}@{step.past}" for step in steps),
        ]
        done = subprocess.run(
            [*emulator, *plugin, *program],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join(map(str, (arm / "site", PROJECT / "service", PROJECT))),
                "PYTHONDONTWRITEBYTECODE": "1",
                "MAGNITUDE_HOME": scratch,
                "MAGNITUDE_KERNELS": str(arm / "kernels/libmagnitude_kernels.so"),
                "ORT_DISABLE_TELEMETRY": "1",
                # NumPy's own threads wait for work that never comes.
                "OPENBLAS_NUM_THREADS": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise EmulationFailed(f"{graph} on {cpu} left with {done.returncode}: {done.stderr.strip()[-2000:]}")
        facts: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
        return facts, parse_counts(counted.read_text())
