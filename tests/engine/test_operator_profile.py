"""What ONNX Runtime's profiler writes, as sums by operator."""

import msgspec
import pytest

from magnitude.engine.operator_profile import ProfiledRun, read_profile
from magnitude.errors import EngineError


def node(kind: str, dur_us: int) -> dict[str, object]:
    return {"cat": "Node", "name": "layer.0_kernel_time", "dur": dur_us, "ts": 1, "args": {"op_name": kind}}


def session(name: str, dur_us: int) -> dict[str, object]:
    return {"cat": "Session", "name": name, "dur": dur_us, "ts": 1, "args": {}}


def test_operators_are_summed_by_kind_for_each_run() -> None:
    events = [
        session("session_initialization", 900),
        node("MatMul", 30),
        node("Add", 5),
        node("MatMul", 20),
        session("SequentialExecutor::Execute", 58),
        session("model_run", 60),
        node("Add", 7),
        session("model_run", 8),
    ]
    assert read_profile(msgspec.json.encode(events)) == [
        ProfiledRun(run_s=60e-6, operators_s={"Add": 5e-6, "MatMul": 50e-6}),
        ProfiledRun(run_s=8e-6, operators_s={"Add": 7e-6}),
    ]


@pytest.mark.parametrize("data", [b"", b"{}", b'[{"cat":"Node","dur":', b'[{"dur": "long"}]'])
def test_a_file_that_is_cut_off_or_no_profile_is_an_error(data: bytes) -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        read_profile(data)
