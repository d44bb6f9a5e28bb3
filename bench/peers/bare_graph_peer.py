"""A decoder's graph as the engine runs it, without service, sampling and messages: the ceiling of a batch.

Session options, KV memory, bindings and pieces of a prompt are the engine's own; the next token is the best one.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.peers.worker import Times, greedy, serve
from magnitude.engine.decoder import Decoder
from magnitude.engine.kv import KvMemory
from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.session_spec import SessionSpec
from magnitude.engine.sessions import kernels_for, open_session, prepare_runtime
from magnitude.kernels.library import KernelLibrary
from magnitude.models.catalogue import open_folder
from magnitude.models.description import KERNEL_KV8_GRAPH_FILE

# Of a prompt in one run, as the service has it unless it is configured otherwise.
PIECE = 128


class BareGraph:
    """One decoder with room for `max_batch` rows, by its own graph or by `graph_file` of the same folder."""

    def __init__(self, max_batch: int, graph_file: str = "") -> None:
        self._max_batch = max_batch
        self._graph_file = graph_file
        self._kv: KvMemory | None = None
        self._kernels: KernelLibrary | None = None

    def start(self) -> tuple[int, dict[str, str]]:
        prepare_runtime()
        return os.getpid(), {}

    def load(self, source: str, threads: int, context: int) -> dict[str, str]:
        model = open_folder(Path(source))
        if model.decoder is None:
            raise ValueError(f"{source} is no decoder")
        if self._graph_file == KERNEL_KV8_GRAPH_FILE:
            shape = msgspec.structs.replace(model.decoder, kv_type="int8_per_token")
            model = msgspec.structs.replace(model, decoder=shape)
        assert model.decoder is not None
        layout = KvLayout.of(model.decoder, slots=self._max_batch, max_len=context)
        fd = os.memfd_create("bare-graph")
        os.ftruncate(fd, layout.total_bytes)
        self._kv = KvMemory(fd, layout)
        os.close(fd)
        graph_file = self._graph_file or model.graph_file
        model = msgspec.structs.replace(model, graph_file=graph_file)
        session = open_session(Path(source) / graph_file, threads)
        own = SessionSpec(threads=threads)
        self._decoder = Decoder(model, session, self._kv, own=own, max_batch=self._max_batch)
        self._kernels = kernels_for(graph_file)
        for row in range(self._max_batch):
            self._decoder.show(row, row)
        self._fill(layout)
        facts = {"graph": graph_file, "KV": layout.kv_type}
        return facts if self._kernels is None else facts | {"instruction set": self._kernels.instruction_set}

    def _fill(self, layout: KvLayout) -> None:
        """Keys and values as a prompt would leave them, as far as time goes: all of them there, none of them zero."""
        assert self._kv is not None
        rng = np.random.default_rng(1)
        for layer, part, slot in itertools.product(range(layout.layers), layout.parts, range(layout.slots)):
            block = self._kv.slot_bytes(layer, part.name, slot).view(part.dtype)
            if part.dtype == "int8":
                block[:] = rng.integers(-127, 128, block.shape, np.int8)
            else:
                # Scales of bytes are positive, and of a size that gives numbers as usual as the others.
                numbers = rng.standard_normal(block.shape, np.float32)
                block[:] = np.abs(numbers) / 127 if part.name.endswith("_scale") else numbers

    def generate(self, ids: list[int], steps: int) -> Times:
        return self.batch([ids], steps)

    def batch(self, prompts: list[list[int]], steps: int) -> Times:
        """Prefill each prompt in a row of its own, then `steps` steps of all rows."""
        begin = time.perf_counter()
        tokens = []
        for row, ids in enumerate(prompts):
            for past in range(0, len(ids), PIECE):
                logits = self._decoder.extend(row, ids[past : past + PIECE], past)[0]
            tokens.append(greedy(logits))
        first = time.perf_counter()
        pasts = [len(ids) for ids in prompts]
        for step in range(steps):
            rows = self._decoder.step(tokens, [past + step for past in pasts])
            tokens = [greedy(row) for row in rows]
        end = time.perf_counter()
        return {"prefill_s": first - begin, "ttft_s": first - begin, "decode_s": end - first}

    def steps(self, past: int, rows: int, steps: int) -> float:
        # Any id does: what is timed is arithmetic, not text.
        tokens = [1000 + row for row in range(rows)]
        begin = time.perf_counter()
        for step in range(steps):
            tokens = [greedy(row) for row in self._decoder.step(tokens, [past + step] * rows)]
        return time.perf_counter() - begin

    def prompt(self, tokens: int) -> float:
        ids = [7919 * (position + 1) % 1000 for position in range(tokens)]
        begin = time.perf_counter()
        for past in range(0, tokens, PIECE):
            self._decoder.extend(0, ids[past : past + PIECE], past)
        return time.perf_counter() - begin

    def logits(self, ids: list[int]) -> Any:
        pieces = [
            self._decoder.extend(0, ids[past : past + PIECE], past, "all").copy()
            for past in range(0, len(ids), PIECE)
        ]
        return np.concatenate(pieces)

    def costs(self) -> dict[str, dict[str, int]]:
        if self._kernels is None:
            return {}
        found = {name: msgspec.structs.asdict(cost) for name, cost in self._kernels.costs().items()}
        self._kernels.reset_costs()
        return found

    def stop(self) -> None:
        if self._kv is not None:
            self._decoder.close()
            self._kv.close()


if __name__ == "__main__":
    serve(BareGraph(int(sys.argv[1]), *sys.argv[2:3]))
