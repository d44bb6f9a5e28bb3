from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from magnitude.engine.protocol import InferTensors, Tensor, TensorInfo, TensorsOut
from magnitude.engine.sessions import open_session
from magnitude.engine.tensors import TensorJob, feed_of, to_array, to_tensor
from magnitude.errors import EngineError, RequestError

DTYPES = ["float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@given(dtype=st.sampled_from([*DTYPES, "bool"]), shape=st.lists(st.integers(0, 4), max_size=4))
def test_a_tensor_survives_the_way_out_and_in(dtype: str, shape: list[int]):
    array = (np.random.default_rng(0).random(shape) * 100).astype(dtype)
    tensor = to_tensor("x", array)
    back = to_array(tensor, TensorInfo(name="x", dtype=dtype, shape=tuple(-1 for _ in shape)))
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


def x(shape: tuple[int, ...] = (2, 4), dtype: str = "float32", size: int | None = None, name: str = "x") -> Tensor:
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize if size is None else size
    return Tensor(name=name, dtype=dtype, shape=shape, data=bytes(count))


WANTED = [TensorInfo(name="x", dtype="float32", shape=(-1, 4))]


@pytest.mark.parametrize(
    ("tensors", "param"),
    [
        ([], "x"),
        ([x(), x()], "x"),
        ([x(), x(name="z")], "z"),
        ([x(dtype="int32")], "x"),
        ([x((2, 3))], "x"),
        ([x((8,))], "x"),
        ([x((-1, 4), size=16)], "x"),
        ([x(size=31)], "x"),
        ([x((2, 4), size=0)], "x"),
        ([x((10**12, 4), size=16)], "x"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(tensors: list[Tensor], param: str):
    with pytest.raises(RequestError) as caught:
        feed_of(tensors, WANTED)
    assert caught.value.param == param
    assert param in caught.value.message


def test_inputs_of_a_type_that_is_not_carried_are_refused():
    with pytest.raises(RequestError):
        to_array(x(dtype="float32"), TensorInfo(name="x", dtype="tensor(string)", shape=(2, 4)))


@pytest.mark.parametrize("value", [["text"], np.array(["text"], dtype=object), {"a": 1}, None])
def test_an_output_that_is_no_tensor_of_numbers_is_an_error(value: object):
    with pytest.raises(EngineError) as caught:
        to_tensor("y", value)
    assert caught.value.code == "unsupported_output"


def test_inputs_whose_free_dimensions_do_not_fit_together_are_the_requests_fault(tmp_path: Path):
    rows = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [name + "_rows"]) for name in "ab"]
    total = helper.make_tensor_value_info("total", TensorProto.FLOAT, ["rows"])
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["total"])], "add", rows, [total])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "model.onnx")
    session = open_session(tmp_path / "model.onnx", 1)

    def run(a: int, b: int) -> TensorsOut:
        tensors = [x((a,), name="a"), x((b,), name="b")]
        (answer,) = TensorJob(InferTensors(request_id=1, model="add", inputs=tensors), session).advance()
        assert isinstance(answer, TensorsOut)
        return answer

    assert run(3, 3).outputs[0].shape == (3,)
    with pytest.raises(RequestError) as caught:
        run(3, 2)
    assert caught.value.code == "inputs_do_not_fit"
    assert run(2, 2).outputs[0].shape == (2,)
