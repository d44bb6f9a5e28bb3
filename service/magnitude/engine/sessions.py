"""How ONNX Runtime sessions are made: always the same explicit way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime

from magnitude.engine.load_errors import check_graph_file, explain
from magnitude.engine.protocol import TensorInfo
from magnitude.kernels.library import KernelLibrary, kernels
from magnitude.models.description import KERNEL_GRAPH_FILES

PROVIDERS = ("CPUExecutionProvider",)
# Severities are 0 verbose, 1 info, 2 warning, 3 error, 4 fatal. Errors reach us as exceptions as well, and in the
# log they would be coloured texts of several lines.
_FATAL_ONLY = 4

# ONNX Runtime's names of element types, and NumPy's.
DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int8)": "int8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(uint8)": "uint8",
    "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(bool)": "bool",
}


def prepare_runtime() -> None:
    """Switch the log to what is fatal, and telemetry off also where the variable set by the package is not read."""
    onnxruntime.disable_telemetry_events()
    onnxruntime.set_default_logger_severity(_FATAL_ONLY)


def kernels_for(graph_file: str | Path) -> KernelLibrary | None:
    """What computes the operators of a kernel plan; None for every other graph. Raises `EngineError`
    `kernels_unusable` where a kernel plan cannot be computed."""
    return kernels.library() if Path(graph_file).name in KERNEL_GRAPH_FILES else None


def session_options(
    threads: int, *, arena: bool = False, profile: str = "", kernels: KernelLibrary | None = None
) -> Any:
    """Options of every session. None of them saves an optimised graph, which would hold for this CPU and this ONNX
    Runtime only: `packed_weights.py` does, and sees to that. `profile`: how the name of a file begins into which each
    operator of each run is written ("": nowhere). With `kernels` these have the threads, whoever runs the session
    says how many before a run, and ONNX Runtime has none beside them.
    """
    options = onnxruntime.SessionOptions()
    if kernels is not None:
        options.register_custom_ops_library(str(kernels.path))
    options.intra_op_num_threads = threads if kernels is None else 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _FATAL_ONLY
    # Threads that sleep between two operators wake too late: letting them spin for a moment gave 1.4 to 1.6 times the
    # decode rate (SmolLM2-135M, 2 threads, medians of 7 interleaved rounds) for a fifth less processor time a step.
    # They stop with each run, so an idle engine costs nothing.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.intra_op.spin_duration_us", "20")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # The arena keeps the peak of the largest shape for ever, and memory patterns keep one plan a shape: with
    # prompts of every length both only grow. Of one run of 8,192 positions among small ones MiniLM kept 347 MB with
    # the arena and 3 MB without; it was as fast (docs/performance.md). Never the run option that shrinks an arena
    # with the arena off: ONNX Runtime refuses the pair.
    options.enable_cpu_mem_arena = arena
    options.enable_mem_pattern = False
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    return options


def open_session(path: Path, threads: int, *, arena: bool = False, profile: str = "") -> Any:
    """An `InferenceSession` of the graph at `path`. Raises `ModelError` with the file, the cause and a hint, and what
    `kernels_for` raises."""
    check_graph_file(path)
    library = kernels_for(path)
    try:
        options = session_options(threads, arena=arena, profile=profile, kernels=library)
        return onnxruntime.InferenceSession(str(path), options, providers=list(PROVIDERS))
    except MemoryError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions have no common root
        raise explain(path, type(error).__name__, str(error)) from error


def describe(arguments: list[Any]) -> tuple[TensorInfo, ...]:
    """Graph inputs or outputs as messages: a free dimension is -1, an unknown type keeps ONNX Runtime's name."""
    return tuple(
        TensorInfo(
            name=argument.name,
            dtype=DTYPES.get(argument.type, argument.type),
            shape=tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in argument.shape),
        )
        for argument in arguments
    )
