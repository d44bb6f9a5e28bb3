"""llama.cpp through the low-level API of `llama-cpp-python`: no Python between graph and logits.

Everything is llama.cpp's default but threads and context: KV in float16, micro-batches of 512, flash attention
where it chooses so. An argument `--flash-attention on` or `off` decides that instead.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.peers.worker import Times, greedy, serve


class LlamaCpp:
    """One model, one context, whose cache has room for `sequences` that decode together."""

    def __init__(self, flash_attention: str = "auto", sequences: int = 1) -> None:
        self._flash_attention = {"auto": -1, "off": 0, "on": 1}[flash_attention]
        self._sequences = sequences

    def start(self) -> tuple[int, dict[str, str]]:
        import llama_cpp
        import numpy

        self._lib: Any = llama_cpp
        self._numpy: Any = numpy
        self._silence = llama_cpp.llama_log_callback(lambda _level, _text, _data: None)
        llama_cpp.llama_log_set(self._silence, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        facts = {
            "llama-cpp-python": version("llama-cpp-python"),
            "ggml": _ggml_version(Path(llama_cpp.__file__).parent / "lib"),
            "build": llama_cpp.llama_print_system_info().decode().strip().rstrip("|").strip(),
        }
        return os.getpid(), facts

    def load(self, source: str, threads: int, context: int) -> dict[str, str]:
        lib = self._lib
        self._model = lib.llama_model_load_from_file(source.encode(), lib.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {source}")
        params = lib.llama_context_default_params()
        params.n_ctx = context * self._sequences
        params.n_seq_max = self._sequences
        params.flash_attn_type = self._flash_attention
        params.n_threads = threads
        params.n_threads_batch = threads
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("llama.cpp gives no context")
        self._batch = int(lib.llama_n_batch(self._context))
        self._vocab = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model)))
        description = ctypes.create_string_buffer(256)
        lib.llama_model_desc(self._model, description, 256)
        return {"model": description.value.decode(), "micro-batch": str(lib.llama_n_ubatch(self._context))}

    def generate(self, ids: list[int], steps: int) -> Times:
        lib = self._lib
        lib.llama_memory_clear(lib.llama_get_memory(self._context), False)
        begin = time.perf_counter()
        for start in range(0, len(ids), self._batch):
            self._run(ids[start : start + self._batch])
        logits = self._logits()
        prefilled = time.perf_counter()
        token = greedy(logits)
        first = time.perf_counter()
        for _ in range(steps):
            self._run([token])
            token = greedy(self._logits())
        end = time.perf_counter()
        return {"prefill_s": prefilled - begin, "ttft_s": first - begin, "decode_s": end - first}

    def steps(self, past: int, rows: int, steps: int) -> float:
        memory = self._lib.llama_get_memory(self._context)
        for row in range(rows):
            there = int(self._lib.llama_memory_seq_pos_max(memory, row)) + 1
            for start in range(there, past, self._batch):
                ids = [7919 * (position + 1) % 1000 for position in range(start, min(past, start + self._batch))]
                self._run_rows([(token, start + at, row) for at, token in enumerate(ids)], every=False)
            self._lib.llama_memory_seq_rm(memory, row, past, -1)
        tokens = [1000 + row for row in range(rows)]
        begin = time.perf_counter()
        for step in range(steps):
            self._run_rows([(token, past + step, row) for row, token in enumerate(tokens)])
            tokens = [greedy(self._logits(row)) for row in range(rows)]
        return time.perf_counter() - begin

    def prompt(self, tokens: int) -> float:
        memory = self._lib.llama_get_memory(self._context)
        self._lib.llama_memory_clear(memory, False)
        ids = [7919 * (position + 1) % 1000 for position in range(tokens)]
        begin = time.perf_counter()
        for start in range(0, tokens, self._batch):
            rows = [(token, start + at, 0) for at, token in enumerate(ids[start : start + self._batch])]
            self._run_rows(rows, every=False)
        self._logits()
        return time.perf_counter() - begin

    def logits(self, ids: list[int]) -> Any:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), False)
        rows = []
        for start in range(0, len(ids), self._batch):
            piece = ids[start : start + self._batch]
            self._run_rows([(token, start + at, 0) for at, token in enumerate(piece)])
            rows += [self._logits(at).copy() for at in range(len(piece))]
        return self._numpy.stack(rows)

    def costs(self) -> dict[str, dict[str, int]]:
        return {}

    def stop(self) -> None:
        if hasattr(self, "_context"):
            self._lib.llama_free(self._context)
            self._lib.llama_model_free(self._model)

    def _run(self, ids: list[int]) -> None:
        tokens = (self._lib.llama_token * len(ids))(*ids)
        status = self._lib.llama_decode(self._context, self._lib.llama_batch_get_one(tokens, len(ids)))
        if status != 0:
            raise RuntimeError(f"llama_decode answers {status}")

    def _run_rows(self, rows: list[tuple[int, int, int]], *, every: bool = True) -> None:
        """One run of (token, position, sequence); logits of all, or of the last one only."""
        batch = self._lib.llama_batch_init(len(rows), 0, 1)
        try:
            batch.n_tokens = len(rows)
            for at, (token, position, sequence) in enumerate(rows):
                batch.token[at] = token
                batch.pos[at] = position
                batch.n_seq_id[at] = 1
                batch.seq_id[at][0] = sequence
                batch.logits[at] = every or at == len(rows) - 1
            status = self._lib.llama_decode(self._context, batch)
        finally:
            self._lib.llama_batch_free(batch)
        if status != 0:
            raise RuntimeError(f"llama_decode answers {status}")

    def _logits(self, row: int = -1) -> Any:
        # Waits for the run: llama_decode may return before it is done.
        pointer = self._lib.llama_get_logits_ith(self._context, row)
        return self._numpy.ctypeslib.as_array(pointer, shape=(self._vocab,))


def _ggml_version(folder: Path) -> str:
    library = ctypes.CDLL(str(folder / "libggml-base.so"))
    library.ggml_version.restype = ctypes.c_char_p
    library.ggml_commit.restype = ctypes.c_char_p
    return f"{library.ggml_version().decode()} ({library.ggml_commit().decode()})"


if __name__ == "__main__":
    options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    serve(LlamaCpp(options.get("--flash-attention", "auto"), int(options.get("--sequences", 1))))
