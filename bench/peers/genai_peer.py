"""ONNX Runtime GenAI on our own model folder."""

from __future__ import annotations

import json
import os
import time
from importlib.metadata import version
from typing import Any

from bench.peers.worker import Times, serve


class GenAi:
    """One model; a new generator for each generation, as its users have it."""

    def start(self) -> tuple[int, dict[str, str]]:
        import onnxruntime_genai

        onnxruntime_genai.disable_telemetry_events()
        self._lib: Any = onnxruntime_genai
        facts = {
            "onnxruntime-genai": f"{onnxruntime_genai.__version__} ({onnxruntime_genai.__commit__[:9]})",
            "onnxruntime": version("onnxruntime"),
        }
        return os.getpid(), facts

    def load(self, source: str, threads: int, context: int) -> dict[str, str]:
        config = self._lib.Config(source)
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
        self._model = self._lib.Model(config)
        self._context = context
        return {"shared KV": "past_present_share_buffer"}

    def generate(self, ids: list[int], steps: int) -> Times:
        params = self._lib.GeneratorParams(self._model)
        # min_length keeps the end token from being drawn, so that every contender decodes as many tokens.
        params.set_search_options(
            do_sample=False,
            max_length=self._context,
            min_length=self._context,
            past_present_share_buffer=True,
        )
        begin = time.perf_counter()
        generator = self._lib.Generator(self._model, params)
        generator.append_tokens(ids)
        prefilled = time.perf_counter()
        generator.generate_next_token()
        first = time.perf_counter()
        # A step is the run and the choice; the one after the last token's choice would have no run.
        for _ in range(steps):
            generator.generate_next_token()
        end = time.perf_counter()
        if generator.token_count() != len(ids) + steps + 1:
            raise RuntimeError(f"{generator.token_count()} tokens instead of {len(ids) + steps + 1}")
        del generator
        return {"prefill_s": prefilled - begin, "ttft_s": first - begin, "decode_s": end - first}

    def stop(self) -> None:
        self._model = None


if __name__ == "__main__":
    serve(GenAi())
