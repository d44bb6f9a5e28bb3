"""The serving graph as the engine runs it, without service, sampling and messages: the ceiling of a batch.

Session options, KV memory, bindings and pieces of a prompt are the engine's own; the next token is the best one.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from bench.peers.worker import Times, greedy, serve
from magnitude.engine.decoder import Decoder
from magnitude.engine.kv import KvMemory
from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.sessions import open_session, prepare_runtime
from magnitude.models.catalogue import open_folder

# Of a prompt in one run, as the service has it unless it is configured otherwise.
PIECE = 128


class BareGraph:
    """One decoder with room for `max_batch` rows."""

    def __init__(self, max_batch: int) -> None:
        self._max_batch = max_batch
        self._kv: KvMemory | None = None

    def start(self) -> tuple[int, dict[str, str]]:
        prepare_runtime()
        return os.getpid(), {}

    def load(self, source: str, threads: int, context: int) -> dict[str, str]:
        model = open_folder(Path(source))
        if model.decoder is None:
            raise ValueError(f"{source} is no decoder")
        layout = KvLayout.of(model.decoder, slots=self._max_batch, max_len=context)
        fd = os.memfd_create("bare-graph")
        os.ftruncate(fd, layout.total_bytes)
        self._kv = KvMemory(fd, layout)
        os.close(fd)
        session = open_session(Path(source) / model.graph_file, threads)
        self._decoder = Decoder(model, session, self._kv, max_batch=self._max_batch)
        for row in range(self._max_batch):
            self._decoder.show(row, row)
        return {"graph": model.graph_file, "KV": model.decoder.kv_type}

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

    def stop(self) -> None:
        if self._kv is not None:
            self._decoder.close()
            self._kv.close()


if __name__ == "__main__":
    serve(BareGraph(int(sys.argv[1])))
