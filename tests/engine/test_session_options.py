from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from magnitude.engine.sessions import PROVIDERS, session_options

SIZE = 512
WAITS, WAIT_S = 40, 0.01


def write_product(path: Path) -> None:
    """A matrix product large enough that ONNX Runtime splits it over its threads."""
    weight = numpy_helper.from_array(np.ones([SIZE, SIZE], np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [SIZE, SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [SIZE, SIZE])],
        [weight],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def busy_share_between_runs(path: Path, options: onnxruntime.SessionOptions) -> float:
    """Processor time of all threads of this process per second in which nothing is asked of the session."""
    session = onnxruntime.InferenceSession(str(path), options, providers=list(PROVIDERS))
    x = np.ones([SIZE, SIZE], np.float32)
    used_s = 0.0
    for _ in range(WAITS):
        session.run(None, {"x": x})
        before_s = time.process_time()
        time.sleep(WAIT_S)
        used_s += time.process_time() - before_s
    return used_s / (WAITS * WAIT_S)


def test_no_thread_is_busy_between_two_runs(tmp_path: Path) -> None:
    write_product(tmp_path / "model.onnx")
    default = onnxruntime.SessionOptions()
    default.intra_op_num_threads = 2
    ours = busy_share_between_runs(tmp_path / "model.onnx", session_options(2))
    assert ours < 0.5 * busy_share_between_runs(tmp_path / "model.onnx", default)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_every_session_has_the_threads_it_was_given(threads: int) -> None:
    options = session_options(threads)
    assert options.intra_op_num_threads == threads
    assert options.inter_op_num_threads == 1


def test_no_session_writes_an_optimised_graph() -> None:
    assert session_options(1).optimized_model_filepath == ""


def test_only_the_cpu_provider_is_asked_for() -> None:
    assert PROVIDERS == ("CPUExecutionProvider",)
