"""A plain loop over our graph in ONNX Runtime, KV in place: what the same graph gives without an engine process.

ONNX Runtime's own defaults hold but for the threads; `--engine-options` takes the session options of our engine
instead, which shows what those cost.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from bench.peers.worker import Times, greedy, serve

ITEM_TYPES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(int8)": "int8"}


class PlainOnnxRuntime:
    """One session, one KV cache, the whole prompt in one run."""

    def __init__(self, engine_options: bool = False, profile_prefix: str | None = None) -> None:
        self._engine_options = engine_options
        self._profile_prefix = profile_prefix

    def start(self) -> tuple[int, dict[str, str]]:
        import numpy
        import onnxruntime

        onnxruntime.disable_telemetry_events()
        self._numpy: Any = numpy
        self._lib: Any = onnxruntime
        return os.getpid(), {"onnxruntime": onnxruntime.__version__}

    def load(self, source: str, threads: int, context: int) -> dict[str, str]:
        options = self._options(threads)
        if self._profile_prefix:
            options.enable_profiling = True
            options.profile_file_prefix = self._profile_prefix
        graph = str(Path(source) / "model.onnx")
        self._session = self._lib.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self._binding = self._session.io_binding()
        self._inputs = {info.name: info for info in self._session.get_inputs()}
        outputs = {info.name: info for info in self._session.get_outputs()}
        self._kv: list[Any] = []
        for name, info in self._inputs.items():
            if len(info.shape) != 4:
                continue
            shape = (1, info.shape[1], context, info.shape[3])
            cache = self._numpy.zeros(shape, ITEM_TYPES[info.type])
            self._kv.append(cache)
            pointer = cache.ctypes.data
            self._binding.bind_input(name, "cpu", 0, cache.dtype.type, shape, pointer)
            present = name.replace("past_key_values", "present")
            self._binding.bind_output(present, "cpu", 0, cache.dtype.type, shape, pointer)
        self._logits = self._numpy.zeros((1, 1, outputs["logits"].shape[2]), self._numpy.float32)
        self._binding.bind_output(
            "logits", "cpu", 0, self._numpy.float32, self._logits.shape, self._logits.ctypes.data
        )
        return {"options": "the engine's" if self._engine_options else "defaults"}

    def generate(self, ids: list[int], steps: int) -> Times:
        begin = time.perf_counter()
        self._run(ids, 0)
        prefilled = time.perf_counter()
        token = greedy(self._logits[0, -1])
        first = time.perf_counter()
        for step in range(steps):
            self._run([token], len(ids) + step)
            token = greedy(self._logits[0, -1])
        end = time.perf_counter()
        return {"prefill_s": prefilled - begin, "ttft_s": first - begin, "decode_s": end - first}

    def stop(self) -> None:
        if self._profile_prefix:
            self._session.end_profiling()

    def _run(self, ids: list[int], past: int) -> None:
        numpy, total = self._numpy, past + len(ids)
        feeds = {
            "input_ids": numpy.array([ids], numpy.int64),
            "attention_mask": numpy.ones((1, total), numpy.int64),
            "position_ids": numpy.arange(past, total, dtype=numpy.int64)[None],
        }
        for name, array in feeds.items():
            if name in self._inputs:
                self._binding.bind_cpu_input(name, array)
        self._session.run_with_iobinding(self._binding)

    def _options(self, threads: int) -> Any:
        if self._engine_options:
            from magnitude.engine.sessions import session_options

            return session_options(threads)
        options = self._lib.SessionOptions()
        options.intra_op_num_threads = threads
        return options


if __name__ == "__main__":
    serve(PlainOnnxRuntime(engine_options="--engine-options" in sys.argv))
