"""Memory of an encoder session under one way of allocating: run as a process of its own, prints JSON.

python -m bench.encoder_arena MODE MODEL_FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime

from magnitude.engine.process import trim_heap
from magnitude.engine.sessions import PROVIDERS, prepare_runtime, session_options

# Arena, memory patterns, reuse of buffers inside the graph, and which runs ask the arena to shrink (by positions).
MODES: dict[str, tuple[bool, bool, bool, int | None]] = {
    "arena off": (False, False, True, None),
    "arena off, buffers of the graph not reused": (False, False, False, None),
    "arena off, memory patterns": (False, True, True, None),
    "arena on": (True, False, True, None),
    "arena on, memory patterns": (True, True, True, None),
    "arena on, shrinks after large runs": (True, False, True, 512),
    "arena on, shrinks after each run": (True, False, True, 0),
}
# Texts and tokens. 512 positions are twice the largest run that the engine makes, 8,192 what runs
# would have without a bound.
SHAPES = ((1, 16), (32, 16), (2, 256), (1, 16), (1, 16), (32, 256), (1, 16), (1, 16), (2, 256), (1, 16))


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Memory above that of the loaded session: highest during the run, and left after it."""

    rows: int
    tokens: int
    peak_bytes: int
    left_bytes: int


class ArenaResult(msgspec.Struct, frozen=True, kw_only=True):
    mode: str
    loaded_bytes: int
    steps: list[Step]
    trimmed_bytes: int  # left after the heap was trimmed


def main() -> None:
    mode, folder = sys.argv[1], Path(sys.argv[2])
    arena, patterns, reuse, shrink_above = MODES[mode]
    prepare_runtime()
    options = session_options(threads=2)
    options.enable_cpu_mem_arena = arena
    options.enable_mem_pattern = patterns
    options.enable_mem_reuse = reuse
    session: Any = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=list(PROVIDERS))
    shrinking: Any = onnxruntime.RunOptions()
    shrinking.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    trim_heap()
    loaded, _ = _memory()
    steps = []
    for rows, tokens in SHAPES:
        inputs = feed(rows, tokens)
        Path("/proc/self/clear_refs").write_text("5")  # the highest is counted anew (proc(5))
        shrink = shrink_above is not None and rows * tokens > shrink_above
        session.run(None, inputs, shrinking if shrink else None)
        left, peak = _memory()
        steps.append(Step(rows=rows, tokens=tokens, peak_bytes=peak - loaded, left_bytes=left - loaded))
    trim_heap()
    result = ArenaResult(mode=mode, loaded_bytes=loaded, steps=steps, trimmed_bytes=_memory()[0] - loaded)
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")


def feed(rows: int, tokens: int) -> dict[str, Any]:
    ids = np.full((rows, tokens), 1000, np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def _memory() -> tuple[int, int]:
    """Resident bytes now, and the highest since they were last counted anew."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kib = {
        name: rest.split()[0] for name, _, rest in (line.partition(":") for line in lines) if name.startswith("Vm")
    }
    return int(kib["VmRSS"]) * 1024, int(kib["VmHWM"]) * 1024


if __name__ == "__main__":
    main()
