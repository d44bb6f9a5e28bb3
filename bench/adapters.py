"""What LoRA adapters cost: time of a run through the graph that takes them, memory beside a second whole model."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import magnitude
from bench.graph_runs import kv_file, open_decoder, timed
from bench.memory import MemoryUse, read_memory
from bench.spread import Spread, paired_ratio
from magnitude.engine.decoder import Decoder
from magnitude.engine.message import Message
from magnitude.engine.protocol import (
    PROTOCOL_VERSION,
    Done,
    Failed,
    Finished,
    Generate,
    Hello,
    LoadAdapter,
    Loaded,
    LoadModel,
    SamplerSettings,
    ToService,
)
from magnitude.engine.sessions import prepare_runtime
from magnitude.engine.wire import FrameReader, encode_frame
from magnitude.models.adapters import AdapterDescription
from magnitude.models.catalogue import open_folder
from magnitude.models.description import ModelDescription
from magnitude.models.manifest import read_manifest, write_manifest

RANKS = (8, 16)
PAST_TOKENS = 128
PREFILL_TOKENS = 128
# The least of so many runs in a row stands for a round: what disturbs a run only ever makes it longer.
RUNS_A_ROUND = 3
NEW_TOKENS = 16


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """Time of one shape of run with adapters of a rank (0: the base alone), against the plain graph in turns."""

    run: str
    rank: int
    ratio: Spread
    processor_ratio: Spread  # processor time of all threads, which other processes disturb less


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of an engine process after a generation with each of its models and adapters."""

    holding: str
    memory: MemoryUse


def base_with_lora(model: Path, target: Path) -> ModelDescription:
    """A copy of an imported decoder that also has the LoRA graph."""
    from magnitude.models.graphs.lora import LORA_GRAPH_FILE, write_lora

    shutil.copytree(model, target)
    manifest = read_manifest(target)
    assert manifest.decoder is not None, "adapters belong to decoders"
    write_lora(target / manifest.graph_file, target / LORA_GRAPH_FILE, manifest.decoder.layers)
    write_manifest(target, msgspec.structs.replace(manifest, lora_graph_file=LORA_GRAPH_FILE))
    return open_folder(target)


def random_adapter(base: ModelDescription, rank: int, work: Path) -> AdapterDescription:
    """An adapter of random numbers on every linear layer of `base`, through a real import."""
    from safetensors.numpy import save_file

    from magnitude.models.importing.adapter import import_adapter
    from magnitude.models.importing.adapter_job import Base

    rng = np.random.default_rng(rank)
    tensors = {}
    for (layer, module), place in Base(base).places.items():
        name = f"base_model.model.model.layers.{layer}.{module}"
        tensors[f"{name}.lora_A.weight"] = rng.normal(0, place.columns**-0.5, (rank, place.columns)).astype("f4")
        tensors[f"{name}.lora_B.weight"] = rng.normal(0, 0.01, (place.rows, rank)).astype("f4")
    folder = work / f"rank-{rank}"
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))
    return import_adapter(folder, base)


def step_costs(
    base: ModelDescription, adapters: dict[int, AdapterDescription], threads: int, rounds: int
) -> list[StepCost]:
    """Decode steps of one and four rows and a piece of a prompt, each rank against the plain graph."""
    prepare_runtime()
    with open_decoder(base, threads) as plain, open_decoder(_through_lora(base), threads) as lora:
        for adapter in adapters.values():
            lora.adapters.load(adapter.name, Path(adapter.folder), adapter.adapter_hash)
        names = {0: "", **{rank: adapter.name for rank, adapter in adapters.items()}}
        runs: dict[str, tuple[int, Callable[[Decoder], Any]]] = {
            "decode, 1 row": (1, lambda decoder: decoder.step([17], [PAST_TOKENS])),
            "decode, 4 rows": (4, lambda decoder: decoder.step([17] * 4, [PAST_TOKENS] * 4)),
            f"prefill, {PREFILL_TOKENS} tokens": (1, lambda decoder: decoder.extend(0, [17] * PREFILL_TOKENS, 0)),
        }
        return [
            cost for run, (rows, do) in runs.items() for cost in _compare(run, rows, do, plain, lora, names, rounds)
        ]


def _compare(
    run: str,
    rows: int,
    do: Callable[[Decoder], Any],
    plain: Decoder,
    lora: Decoder,
    names: dict[int, str],
    rounds: int,
) -> list[StepCost]:
    wall_s: dict[int, list[float]] = {rank: [] for rank in (-1, *names)}
    cpu_s: dict[int, list[float]] = {rank: [] for rank in (-1, *names)}
    for _ in range(rounds):
        for rank in (-1, *names):
            decoder = plain if rank < 0 else lora
            for row in range(rows):
                decoder.show(row, row, "" if rank < 0 else names[rank])
            do(decoder)
            times = [timed(lambda decoder=decoder: do(decoder)) for _ in range(RUNS_A_ROUND)]  # type: ignore[misc]
            wall_s[rank].append(min(wall for wall, _ in times))
            cpu_s[rank].append(min(cpu for _, cpu in times))
    return [
        StepCost(
            run=run,
            rank=rank,
            ratio=paired_ratio(wall_s[rank], wall_s[-1]),
            processor_ratio=paired_ratio(cpu_s[rank], cpu_s[-1]),
        )
        for rank in names
    ]


def _through_lora(base: ModelDescription) -> ModelDescription:
    assert base.lora_graph_file is not None
    return msgspec.structs.replace(base, graph_file=base.lora_graph_file)


def memory_held(
    base: ModelDescription, adapters: list[AdapterDescription], second: ModelDescription, threads: int
) -> list[Held]:
    """An engine with the plain base, with the LoRA graph, with adapters as well, and with a second whole model."""
    lora = _through_lora(base)
    names = " and ".join(f"rank {adapter.rank}" for adapter in adapters)
    return [
        _held("the base alone, plain graph", [base], [], threads),
        _held("the base alone, LoRA graph", [lora], [], threads),
        _held(f"the base and {len(adapters)} adapters ({names})", [lora], adapters, threads),
        _held("two whole models", [base, second], [], threads),
    ]


def _held(holding: str, models: list[ModelDescription], adapters: list[AdapterDescription], threads: int) -> Held:
    with _Engine() as engine:
        for model in models:
            engine.load(model, threads)
        for adapter in adapters:
            engine.load_adapter(adapter)
        for model in models:
            for name in ["", *(adapter.name for adapter in adapters)]:
                engine.generate(model, name)
        time.sleep(2.0)  # an engine gives freed memory back after a second without work
        return Held(holding=holding, memory=read_memory(engine.pid, Path(models[0].folder).parent))


class _Engine:
    """One engine process, asked one thing at a time."""

    def __init__(self) -> None:
        self._sock, theirs = socket.socketpair()
        command = [sys.executable, "-m", "magnitude.engine", "--fd", str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self._reader: FrameReader[Any] = FrameReader(ToService)
        self._received: list[Any] = []
        self._files: list[Any] = []
        self._next_id = 0
        self._send(Hello(protocol_version=PROTOCOL_VERSION, software_version=magnitude.__version__, pid=os.getpid()))

    def __enter__(self) -> _Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._sock.close()
        for file in self._files:
            file.__exit__(None, None, None)

    @property
    def pid(self) -> int:
        return self._process.pid

    def load(self, model: ModelDescription, threads: int) -> None:
        file = kv_file(model)
        fd, layout = file.__enter__()
        self._files.append(file)
        message = LoadModel(request_id=self._id(), model=model, threads=threads, kv=layout, max_batch=1)
        self._ask(message, Loaded, fd)

    def load_adapter(self, adapter: AdapterDescription) -> None:
        message = LoadAdapter(
            request_id=self._id(),
            model=adapter.base,
            name=adapter.name,
            folder=adapter.folder,
            adapter_hash=adapter.adapter_hash,
        )
        self._ask(message, Done)

    def generate(self, model: ModelDescription, adapter: str) -> None:
        message = Generate(
            request_id=self._id(),
            model=model.name,
            slot=0,
            prompt=list(range(100, 100 + PAST_TOKENS)),
            max_new_tokens=NEW_TOKENS,
            sampler=SamplerSettings(temperature=0.0),
            adapter=adapter,
        )
        self._ask(message, Finished)

    def _id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _send(self, message: Message, fd: int | None = None) -> None:
        frame = encode_frame(message)
        sent = socket.send_fds(self._sock, [frame], [fd]) if fd is not None else 0
        self._sock.sendall(frame[sent:])

    def _ask(self, message: Message, answer: type[Message], fd: int | None = None) -> None:
        self._send(message, fd)
        while True:
            data = self._sock.recv(1 << 20)
            if not data:
                raise RuntimeError("the engine is gone")
            for received in self._reader.feed(data):
                if isinstance(received, Failed):
                    raise RuntimeError(f"the engine refused: {received.message}")
                if isinstance(received, answer):
                    return
