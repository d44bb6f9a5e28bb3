"""llama.cpp through the low-level API of `llama-cpp-python`: no Python between graph and logits.

Everything is llama.cpp's default but threads and context: KV in float16, micro-batches of 512, flash attention
where it chooses so.
"""

from __future__ import annotations

import ctypes
import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.peers.worker import Times, greedy, serve


class LlamaCpp:
    """One model, one context."""

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
        params.n_ctx = context
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

    def stop(self) -> None:
        if hasattr(self, "_context"):
            self._lib.llama_free(self._context)
            self._lib.llama_model_free(self._model)

    def _run(self, ids: list[int]) -> None:
        tokens = (self._lib.llama_token * len(ids))(*ids)
        status = self._lib.llama_decode(self._context, self._lib.llama_batch_get_one(tokens, len(ids)))
        if status != 0:
            raise RuntimeError(f"llama_decode answers {status}")

    def _logits(self) -> Any:
        # Waits for the run: llama_decode may return before it is done.
        pointer = self._lib.llama_get_logits_ith(self._context, -1)
        return self._numpy.ctypeslib.as_array(pointer, shape=(self._vocab,))


def _ggml_version(folder: Path) -> str:
    library = ctypes.CDLL(str(folder / "libggml-base.so"))
    library.ggml_version.restype = ctypes.c_char_p
    library.ggml_commit.restype = ctypes.c_char_p
    return f"{library.ggml_version().decode()} ({library.ggml_commit().decode()})"


if __name__ == "__main__":
    serve(LlamaCpp())
