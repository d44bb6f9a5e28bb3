"""Where a graph run spends its time: ONNX Runtime's own profiler, summed by operator."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.compare import CONTEXT, prompt_ids
from bench.peers.onnxruntime_peer import PlainOnnxRuntime

WARM_UP_RUNS = 2
PREFILL_RUNS = 4
DECODE_RUNS = 64
PREFILL_TOKENS = 256


class OperatorShare(msgspec.Struct, frozen=True, kw_only=True):
    """One operator's part of the time in all graph runs; `calls` and `time_ms` are a run."""

    operator: str
    calls: float
    time_ms: float
    share: float


class GraphProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One phase. `outside_ms`: time in the run but in no operator."""

    phase: str
    runs: int
    run_ms: float
    outside_ms: float
    operators: list[OperatorShare]


def summarise(events: Sequence[dict[str, Any]], phase: str, skip_runs: int) -> GraphProfile:
    """Sum up a profile's events, less the first `skip_runs` runs. Raises `ValueError` when no run is left.

    Events are those of ONNX Runtime's profile file: `model_run` of category Session, `*_kernel_time` of category
    Node with the operator under `args.op_name`, times in microseconds.
    """
    runs = sorted((event for event in events if event["name"] == "model_run"), key=lambda event: event["ts"])[
        skip_runs:
    ]
    if not runs:
        raise ValueError("the profile holds no run after the warm-up")
    begin = runs[0]["ts"]
    total: dict[str, float] = {}
    calls: dict[str, int] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time") and event["ts"] >= begin:
            name = _label(event)
            total[name] = total.get(name, 0.0) + event["dur"]
            calls[name] = calls.get(name, 0) + 1
    run_us = sum(event["dur"] for event in runs)
    return GraphProfile(
        phase=phase,
        runs=len(runs),
        run_ms=run_us / len(runs) / 1000,
        outside_ms=(run_us - sum(total.values())) / len(runs) / 1000,
        operators=[
            OperatorShare(
                operator=name,
                calls=calls[name] / len(runs),
                time_ms=spent / len(runs) / 1000,
                share=spent / run_us,
            )
            for name, spent in sorted(total.items(), key=lambda item: -item[1])
        ],
    )


def _label(event: dict[str, Any]) -> str:
    """The operator; for matrix products also the shape of the product, since those differ most."""
    operator = str(event["args"]["op_name"])
    if not operator.startswith("MatMul"):
        return operator
    widths = [
        next(iter(shape.values()))[-1] for shape in (*event["args"].get("input_type_shape", [])[:1],
                                                     *event["args"].get("output_type_shape", [])[:1])
    ]  # fmt: skip
    return f"{operator} {' to '.join(map(str, widths))}"


def profile_phase(source: Path, phase: str, threads: int, *, engine_options: bool) -> GraphProfile:
    """Run the graph in `source` under the profiler, `phase` being prefill or decode."""
    with tempfile.TemporaryDirectory() as folder:
        runtime = PlainOnnxRuntime(engine_options=engine_options, profile_prefix=str(Path(folder) / "profile"))
        runtime.start()
        runtime.load(str(source), threads, CONTEXT)
        ids = prompt_ids(PREFILL_TOKENS, 0)
        if phase == "prefill":
            skip = WARM_UP_RUNS
            for _ in range(skip + PREFILL_RUNS):
                runtime.generate(ids, 0)
        else:
            skip = 1 + WARM_UP_RUNS
            runtime.generate(ids, WARM_UP_RUNS + DECODE_RUNS)
        runtime.stop()
        (file,) = Path(folder).glob("profile*.json")
        return summarise(json.loads(file.read_text()), phase, skip)
